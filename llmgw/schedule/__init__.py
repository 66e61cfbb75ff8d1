"""Decide what runs where. Pure: no I/O, no clock, no randomness.

(wishes, Observed, now) -> Plan. Nothing here awaits. `residency` says who may stay in memory; `decide` makes the
plan; `recovery` says what a failure leads to; `explain` tells the story of each model.
"""
