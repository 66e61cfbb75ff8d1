"""The controller: brings what runs towards what the catalog says, level-triggered.

`sync` takes new catalog revisions in; `loop` makes passes: `observe` reads the store, the pure core decides,
`dispatch` writes what was decided. It meets agents and gateways only in the store.
"""
