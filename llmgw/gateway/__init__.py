"""The data plane: OpenAI-compatible requests in, bytes of a ready engine out, as they come.

`routes`, `balance`, `admission` decide and are pure; `http1`, `openai`, `multipart` and `bodies` know the wire and do
no I/O; `client` and `upstream` own the two kinds of connection, `exchange` joins one of each, and `relay` is what all
exchanges share. `view` keeps the routing table what the store says, `usage` tells the store what is in use and what
waits, `asking` asks for on-demand models, `meters` count, `server` puts them together.

Nothing on the request path waits on the store, logs, or touches prometheus-client.
"""
