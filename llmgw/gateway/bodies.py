"""Which model a request's body names, as JSON or as a form; and the same body naming another. Does no I/O."""

from llmgw.gateway import openai
from llmgw.gateway.multipart import find_model, is_form
from llmgw.gateway.openai import BadBody, Code
from llmgw.gateway.params import Params
from llmgw.gateway.request import Request


def read_model(request: Request) -> str:
    """The name in the body's `model`. Raises BadBody, saying what is wrong.

    A wrong type for what is JSON all the same is overlooked: curl's -d sends one.
    """
    fields = request.head.fields
    if fields.content_encoding and fields.content_encoding.lower() != b"identity":
        raise BadBody("compressed bodies are not read: send it plain", Code.UNSUPPORTED_MEDIA_TYPE, status=415)
    kind = fields.content_type
    if is_form(kind):
        return find_model(kind, request.body).name
    if kind[:10].lower() == b"multipart/":
        what = "of multipart bodies only multipart/form-data is read"
        raise BadBody(what, Code.UNSUPPORTED_MEDIA_TYPE, status=415)
    return openai.read_model(request.body)


def rewrite(request: Request, name: str, params: Params | None = None) -> bytes:
    """The body of a request that `read_model` accepted, with another name in it, and what `params` say. Nothing else
    changes, and of a form the name alone. Raises BadBody."""
    body = request.body
    kind = request.head.fields.content_type
    if not is_form(kind):
        return openai.rewrite_model(body, name) if params is None else openai.reshape(body, name, params)
    found = find_model(kind, body)
    return b"".join((body[: found.start], name.encode(), body[found.end :]))
