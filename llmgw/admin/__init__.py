"""The admin API: what the daemon tells and takes on its loopback port. Reads and writes the store, nothing else.

`shapes` are the JSON answers; `views` makes them from store values, purely; `reading` fetches those values;
`guard` keeps strangers out; `metrics` renders `/metrics`; `app` puts it together.
"""
