"""`python -m llmgw`: the same as `llmgw`."""

from llmgw.cli.main import main

if __name__ == "__main__":
    main()
