"""Secrets that a catalog refers to, read where they are used. Never kept, never told: errors name the place alone."""

import os
from collections.abc import Mapping
from pathlib import Path

from llmgw.catalog.spec import SecretRef
from llmgw.errors import TerminalError


class SecretMissing(TerminalError):
    """It is not where the catalog says."""


def read_secret(ref: SecretRef, environ: Mapping[str, str] = os.environ) -> str:
    """One line of text, without the white space around it. Raises SecretMissing."""
    if ref.from_env is not None:
        where, text = f"the variable {ref.from_env}", environ.get(ref.from_env, "")
    else:
        where = ref.from_file or ""
        try:
            text = Path(where).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise SecretMissing(f"{where} cannot be read: {why}") from error
    text = text.strip()
    if not text:
        raise SecretMissing(f"{where} is not set, or empty, where llmgw runs: set it")
    if not text.isascii() or not text.isprintable():
        raise SecretMissing(f"{where} holds no single line of plain text")
    return text
