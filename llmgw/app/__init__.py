"""The composition root: the only place that builds concrete things and knows all of them.

`parts` has one builder for each part, `process` the one runner; `up` puts all parts into one process, over an embedded
store, `fleet` each into one of its own, over etcd.
"""
