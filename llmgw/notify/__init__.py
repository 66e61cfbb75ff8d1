"""Tells others how revisions fare: forges, as commit statuses, and webhooks.

What is to be told is derived from what the store says (`occasions`), how it is said is in `requests`: both are pure.
`targets` sends, one task for each who is told; `notifier` follows the store. No pass ever waits for any of it.
"""
