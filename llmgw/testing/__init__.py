"""Conformance suites for implementers: what every store and every engine must do, run on the real thing."""
