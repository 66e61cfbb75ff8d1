"""The data plane: OpenAI-compatible requests in, bytes of a ready engine out, as they come.

`routes`, `balance`, `affinity`, `warmup`, `lines`, `admission` decide and are pure; `http1`, `fields`, `openai`,
`multipart`, `bodies`, `reply` and `early` know the wire and do no I/O. `client` and `upstream` own the two kinds of
connection, `seeking` and `exchange` are a request's way from one to the other, `stay` is its time of waiting, and
`relay` is what all requests share. `view` keeps the routing table what the store says, `usage` tells the store what is
in use and what waits, `asking` asks for on-demand models, `meters` count, `server` puts them together.

Nothing on the request path waits on the store, logs, or touches prometheus-client.
"""
