"""The agent of one node: runs the engine processes that its assignments ask for, and reports what is.

`lifecycle` (pure) decides what follows from what happened to a replica; `replica` carries it out; `loop` ties
replicas to the store. `process`, `spawn`, `watch` and `ending` deal with the operating system, and never touch a
process that is not proven ours.
"""
