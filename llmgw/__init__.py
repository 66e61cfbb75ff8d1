"""llmgw: serve LLMs on machines you own from a git catalog."""

__version__ = "0.1.0"
