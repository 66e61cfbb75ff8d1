"""The command line. `main` routes; each command group has its module and imports what is heavy only when it runs, so
that `llmgw --help` and completion load no server, no plugin and no schema.
"""
