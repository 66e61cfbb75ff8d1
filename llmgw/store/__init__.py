"""Where controller, agent and gateway meet: keys, values, watches. Nothing here decides anything.

`api` is the seam; `memory` the embedded store; `keys` every key there is; `codec` how a value is written.
"""
