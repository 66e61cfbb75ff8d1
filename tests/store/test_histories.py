"""History entries of large catalogs are packed, and come back as they were."""

import base64
import json
import zlib
from dataclasses import replace

import pytest

from llmgw.errors import TerminalError
from llmgw.ids import Digest, Revision
from llmgw.store.api import LARGEST
from llmgw.store.codec import encode
from llmgw.store.histories import decode_entry, decode_past, encode_entry
from llmgw.store.values import HistoryEntry
from llmgw.units import Wall


def entry(models: int) -> HistoryEntry:
    wanted = {
        f"m{number:05d}": (f"https://models.example.org/{number * 7919:x}/Q4_K_M.gguf",) for number in range(models)
    }
    return HistoryEntry(
        number=3,
        revision=Revision("r"),
        digest=Digest("d"),
        at=Wall(1),
        sources=tuple(sorted({source for sources in wanted.values() for source in sources})),
        models=wanted,
    )


def test_a_small_entry_is_written_as_it_is() -> None:
    assert encode_entry(entry(10)) == encode(entry(10))
    assert decode_entry(encode_entry(entry(10)), where="here") == entry(10)


def test_the_entry_of_twenty_thousand_models_fits_into_a_value_and_comes_back_whole() -> None:
    raw = encode_entry(entry(20_000))
    assert len(encode(entry(20_000))) > LARGEST > len(raw)
    assert decode_entry(raw, where="here") == entry(20_000)


@pytest.mark.parametrize("moving", [3, 20_000])
def test_what_moving_sources_were_at_is_told_without_the_rest(moving: int) -> None:
    resolved = {f"hf://org/repo-{n}@main": f"hf://org/repo-{n}@{n:040x}" for n in range(moving)}
    whole = replace(entry(20_000), resolved=resolved, documents=Digest("documents"))
    raw = encode_entry(whole)
    assert len(raw) < LARGEST
    past = decode_past(raw, where="here")
    assert (past.number, past.digest, past.resolved, past.documents) == (3, "d", resolved, "documents")
    assert decode_entry(raw, where="here") == whole
    assert json.loads(raw)["all_packed"] == (moving > 3)


@pytest.mark.parametrize("packed", ["!", "aGVsbG8=", base64.b64encode(zlib.compress(b"{}" * 50)[:-6]).decode()])
def test_a_damaged_entry_is_told_with_where_it_lies(packed: str) -> None:
    raw = json.dumps({**json.loads(encode(entry(1))), "packed": packed}).encode()
    with pytest.raises(TerminalError, match="catalog/history/3"):
        decode_entry(raw, where="catalog/history/3")
