"""The argv of one llama-server: what llmgw decides, then the profile's options, then its `args`. Pure."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from llmgw.engine import ProfileSpec, Slot
from llmgw.errors import EngineUnavailable
from llmgw_llamacpp.args import settings
from llmgw_llamacpp.checks import complaints
from llmgw_llamacpp.options import DRAFT_VALUES, SWITCHES, VALUES

HTTP_THREADS: Final = 12
"""Connections that are answered at once, beside one for each slot. With llama-server's few, requests that wait for a
slot take them all, and whoever asks how busy it is waits too."""

_PING: Final = 1
"""Seconds between pings on a stream. llama-server notices only there that it is to stop: with its own 30 s, an answer
in flight kept a stopping process for half a minute."""


def argv(binary: str, profile: ProfileSpec, slot: Slot) -> tuple[str, ...]:
    """Raises EngineUnavailable, saying what to correct, on a profile that contradicts itself."""
    _check(profile, slot)
    options = profile.options
    made = [binary, "--model", str(slot.files["weights"]), "--alias", slot.model]
    made += ["--host", slot.host, "--port", str(slot.port), "--offline", "--no-webui"]
    # llama-server splits the context over its slots.
    made += ["--ctx-size", str(profile.context * profile.parallel), "--parallel", str(profile.parallel)]
    made += ["--threads-http", str(HTTP_THREADS + profile.parallel)]
    made += ["--metrics", "--sse-ping-interval", str(_PING), "--verbosity", str(options.get("verbosity", 1))]
    made += ["--cache-ram", str(options.get("cache_ram_mib", 0))]
    if not options.get("cache_ram_mib"):
        made.append("--no-cache-idle-slots")
    made += _devices(profile)
    if (batch := settings(profile).batch) is not None:
        made += ["--batch-size", str(batch)]
    made += _options(options)
    made += _files(profile, slot)
    return (*made, *profile.args)


def _check(profile: ProfileSpec, slot: Slot) -> None:
    if "weights" not in slot.files:
        raise EngineUnavailable("the engine llamacpp needs `weights`: name a GGUF file")
    for wrong in complaints(profile, slot.files.keys()):
        raise EngineUnavailable(f"{'.'.join(map(str, wrong.path))}: {wrong.message}")


def _devices(profile: ProfileSpec) -> Iterator[str]:
    if not profile.devices:
        yield from ("--device", "none", "--fit", "off")
        return
    layers = profile.options.get("gpu_layers", "auto")
    yield from ("--gpu-layers", str(layers))
    # Where it may choose, it keeps on the host what does not fit; it never touches the context, which is given.
    yield from ("--fit", "on" if layers == "auto" else "off")
    if split := profile.options.get("tensor_split"):
        yield from ("--tensor-split", ",".join(f"{each:g}" for each in split))
    if overrides := profile.options.get("override_tensor"):
        yield from ("--override-tensor", ",".join(overrides))


def _options(options: Mapping[str, Any]) -> Iterator[str]:
    for name, flag in VALUES.items():
        if name in options:
            yield from (flag, str(options[name]))
    for name, (on, off) in SWITCHES.items():
        switch = (on if options[name] else off) if name in options else None
        if switch is not None:
            yield switch
    if (mode := _load_mode(options)) is not None:
        yield from ("--load-mode", mode)
    if "chat_template_kwargs" in options:
        yield from ("--chat-template-kwargs", json.dumps(options["chat_template_kwargs"]))
    if "chat_template" in options:
        yield from ("--chat-template", options["chat_template"])


def _load_mode(options: Mapping[str, Any]) -> str | None:
    """None: the build's own."""
    mapped, locked = options.get("mmap"), options.get("mlock", False)
    if mapped is None and not locked:
        return None
    return "+".join([*(["mmap"] if mapped is not False else []), *(["mlock"] if locked else [])]) or "none"


def _files(profile: ProfileSpec, slot: Slot) -> Iterator[str]:
    files, options = slot.files, profile.options
    if "draft" in files:
        yield from ("--spec-draft-model", str(files["draft"]))
        yield from ("--spec-type", options.get("draft_type", "draft-simple"))
        if not profile.devices:
            yield from ("--spec-draft-device", "none")
        for name, flag in DRAFT_VALUES.items():
            if name in options:
                yield from (flag, str(options[name]))
    if "mmproj" in files:
        yield from ("--mmproj", str(files["mmproj"]))
    if "chat_template" in files:
        yield from ("--chat-template-file", str(files["chat_template"]))
    if adapters := _adapters(files, options.get("lora_scales", {})):
        yield from ("--lora-scaled", ",".join(adapters))


def _adapters(files: Mapping[str, Path], scales: Mapping[str, float]) -> list[str]:
    """`PATH:SCALE` of each adapter, in the order of their roles."""
    found = [(str(path), scales.get(role, 1)) for role, path in sorted(files.items()) if role.startswith("lora")]
    for path, _ in found:
        if "," in path or ":" in path:
            raise EngineUnavailable(
                f"{path}: llama-server takes no ',' or ':' in the path of a LoRA adapter: rename it"
            )
    return [f"{path}:{scale:g}" for path, scale in found]
