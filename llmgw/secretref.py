"""Secrets that a catalog or a flag refers to, read where they are used. Never kept; errors name the place alone."""

import os
from pathlib import Path

from llmgw.catalog.spec import SecretRef
from llmgw.errors import TerminalError


class SecretMissing(TerminalError):
    """A secret that was named is not where it was said to be."""


def read_secret(ref: SecretRef, what: str) -> str:
    """The text, without the white space around it. Raises SecretMissing, naming where it was looked for."""
    try:
        if ref.from_env is not None:
            where, text = f"the variable {ref.from_env}", os.environ.get(ref.from_env, "")
        else:
            where = str(ref.from_file)
            text = Path(where).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise SecretMissing(f"{what} cannot be read from {where}: {why}") from error
    if not text.strip():
        raise SecretMissing(f"{what} is not there: {where} is {'empty' if ref.from_file else 'not set'}")
    return text.strip()


def read_token(ref: SecretRef, what: str) -> str:
    """One that fits on a line of a request's head. Raises SecretMissing."""
    token = read_secret(ref, what)
    if not token.isascii() or not token.isprintable():
        raise SecretMissing(f"{what} is no single line of plain text")
    return token
