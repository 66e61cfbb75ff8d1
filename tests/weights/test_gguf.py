"""The header of a GGUF file, and files that only look like one."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.weights.gguf import read_metadata


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(*pairs: bytes, version: int = 3, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs) if count is None else count) + b"".join(pairs)


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


FULL = header(
    pair("u8", 0, b"\x07"),
    pair("i32", 5, struct.pack("<i", -3)),
    pair("f32", 6, struct.pack("<f", 0.5)),
    pair("nan", 6, struct.pack("<f", float("nan"))),
    pair("yes", 7, b"\x01"),
    pair("s", 8, text("häuser")),
    pair("u64", 10, struct.pack("<Q", 2**40)),
    pair("names", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bb")),
    pair("numbers", 9, struct.pack("<IQ", 4, 3) + bytes(12)),
    pair("last", 4, struct.pack("<I", 9)),
)
VALUES = {
    "u8": 7, "i32": -3, "f32": 0.5, "yes": 1, "s": "häuser", "u64": 2**40, "names.length": 2, "numbers.length": 3,
    "numbers.sum": 0, "last": 9,
}  # fmt: skip


def test_scalars_of_every_kind_and_lengths_of_arrays_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(FULL)
    found = read_metadata(path)
    assert found == VALUES
    assert not any(isinstance(value, bool) for value in found.values())


def test_a_real_model_tells_what_memory_it_takes(smollm2: Path) -> None:
    found = read_metadata(smollm2)
    assert found["general.architecture"] == "llama"
    assert found["llama.block_count"] == 30
    assert found["tokenizer.ggml.tokens.length"] == 49152


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGU",
        b"not a model at all",
        b"GGUF",
        header(version=1),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        header(count=2**60),
        header(count=1),
        header(pair("k", 99, b"")),
        header(pair("k", 8, struct.pack("<Q", 2**63))),
        header(pair("k", 9, struct.pack("<IQ", 8, 2**63))),
        header(pair("k", 9, struct.pack("<IQ", 4, 2**62))),
        header(pair("k", 9, struct.pack("<IQ", 9, 1))),
        header(pair("k", 9, struct.pack("<IQQ", 8, 1, 2**63))),
    ],
)
def test_what_is_no_gguf_is_a_value_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="GGUF"):
        read_metadata(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(cut=st.integers(0, len(FULL)), at=st.integers(0, len(FULL) - 1), byte=st.integers(0, 255))
def test_damage_is_a_value_error_and_nothing_else(cut: int, at: int, byte: int, tmp_path: Path) -> None:
    data = bytearray(FULL)
    data[at] = byte
    path = tmp_path / "x"
    path.write_bytes(bytes(data[:cut]))
    try:
        read_metadata(path)
    except ValueError:
        pass
