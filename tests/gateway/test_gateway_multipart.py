"""Forms that name a model: transcriptions and the like. Read where they lie, and rewritten by nothing but the name."""

import re

import openai
import pytest
from gateway_rig import Asked, Rig, model, say
from hypothesis import given
from hypothesis import strategies as st

from llmgw.gateway.multipart import MAX_PARTS, find_model, is_form
from llmgw.gateway.openai import BadBody

FORM = b"multipart/form-data; boundary=xyz"


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--xyz\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


MODEL = part("model", b"m")
FILE = part("file", b"RIFF\r\n--xy\r\n\r\n" * 3, '; filename="a; name=model.wav"\r\nContent-Type: audio/wav')


@pytest.mark.parametrize(
    "body",
    [
        MODEL + b"--xyz--",
        FILE + MODEL + b"--xyz--\r\n",
        MODEL + FILE + b"--xyz--\r\nepilogue",
        b"preamble\r\n" + MODEL + b"--xyz--",
        b"--xyz  \r\ncontent-disposition:form-data;name=model\r\n\r\nm\r\n--xyz--",
        b'--xyz\r\nX: y\r\nContent-Disposition: form-data; a="\\"; name="; name="mo\\del"\r\n\r\nm\r\n--xyz--',
        part("empty", b"") + MODEL + b"--xyz--",
        b'--xyz\r\nContent-Disposition: form-data; name="empty"\r\n\r\n--xyz\r\n' + MODEL[7:] + b"--xyz--",
        part("file", b"\r\n--xyzzy\r\n\r\n") + MODEL + b"--xyz--",
        b"--xyz\r\n\r\nno header fields\r\n" + MODEL + b"--xyz--",
    ],
)
def test_the_model_is_found_wherever_it_lies(body: bytes) -> None:
    found = find_model(FORM, body)
    assert found.name == "m"
    assert body[found.start : found.end] == b"m"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_form"),
        (b"--xyz", "invalid_form"),
        (MODEL, "invalid_form"),
        (MODEL + b"--xyz", "invalid_form"),
        (b"--xyz--", "model_missing"),
        (FILE + b"--xyz--", "model_missing"),
        (MODEL + MODEL + b"--xyz--", "invalid_form"),
        (part("model", b"") + b"--xyz--", "model_missing"),
        (part("model", b"\xff") + b"--xyz--", "model_missing"),
        (part("model", b"m" * 5000) + b"--xyz--", "model_missing"),
        (part("a", b"") * (MAX_PARTS + 1) + b"--xyz--", "invalid_form"),
        (b"--xyz\r\nX: " + b"x" * 20_000 + b"\r\n\r\n\r\n--xyz--", "invalid_form"),
        (b"--xyz\nContent-Disposition: form-data; name=model\n\nm\n--xyz--", "invalid_form"),
    ],
)
def test_what_is_no_form_or_names_no_model_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(BadBody) as bad:
        find_model(FORM, body)
    assert bad.value.error.code == code


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (b"multipart/form-data; boundary=xyz", True),
        (b'Multipart/Form-Data;charset=utf-8; boundary="xyz"', True),
        (b"multipart/form-data", False),
        (b"multipart/form-data; boundary=", False),
        (b'multipart/form-data; boundary="a\rb"', False),
        (b"multipart/form-data; boundary=" + b"x" * 71, False),
    ],
)
def test_the_boundary_is_read_from_the_content_type(kind: bytes, boundary: bool) -> None:
    assert is_form(kind)
    if boundary:
        assert find_model(kind, MODEL + b"--xyz--").name == "m"
    else:
        with pytest.raises(BadBody, match="boundary"):
            find_model(kind, MODEL + b"--xyz--")


def test_other_types_are_no_forms() -> None:
    assert not is_form(b"application/json")
    assert not is_form(b"multipart/form-database; boundary=x")


@given(
    st.lists(st.sampled_from([MODEL, FILE, b"--xyz", b"--", b"\r\n", b"\r\n\r\n", b"--xyz--"]) | st.binary(max_size=9))
)
def test_any_bytes_give_a_name_that_is_there_or_a_refusal(parts: list[bytes]) -> None:
    body = b"".join(parts)
    try:
        found = find_model(FORM, body)
    except BadBody:
        return
    assert body[found.start : found.end].decode() == found.name


TEXT = {"text": "Hello."}


async def test_the_sdks_transcription_reaches_its_model_by_name_and_by_alias(rig: Rig) -> None:
    engine = await rig.engine(say(TEXT))
    await rig.catalog(model("whisper", "whisper-1"))
    await rig.endpoint("whisper", engine.url)
    host, port = rig.gateway.address
    sound = bytes(range(256)) * 1000
    async with openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as client:
        for name in ("whisper", "whisper-1"):
            answer = await client.audio.transcriptions.create(model=name, file=("a.wav", sound), language="en")
            assert answer.text == "Hello."
        with pytest.raises(openai.NotFoundError):
            await client.audio.transcriptions.create(model="whisker", file=("a.wav", sound))
    plain, rewritten = engine.asked
    for asked in (plain, rewritten):
        assert form(asked) == {"model": b"whisper", "language": b"en", "file": sound}
        assert int(asked.headers["content-length"]) == len(asked.body)


def form(asked: Asked) -> dict[str, bytes]:
    """A form's fields, as another parser reads them."""
    match = re.search("boundary=(.+)", asked.headers["content-type"])
    assert match is not None
    found = {}
    for piece in asked.body.split(b"--" + match[1].encode())[1:-1]:
        head, _, value = piece.partition(b"\r\n\r\n")
        name = re.search(rb'name="(.*?)"', head)
        assert name is not None
        found[name[1].decode()] = value.removesuffix(b"\r\n")
    return found
