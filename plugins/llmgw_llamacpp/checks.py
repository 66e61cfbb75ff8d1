"""What is wrong with a profile that its options' schema cannot say. Pure."""

import re
from collections.abc import Iterator, Set

from llmgw.engine import Complaint, ProfileSpec
from llmgw_llamacpp.args import OWNED, flags, is_pattern, needs_device
from llmgw_llamacpp.options import DEVICE_OPTIONS, DRAFT_VALUES

_NO_DEVICE = "speaks of accelerators, and the profile has `devices: 0`"


def complaints(profile: ProfileSpec, roles: Set[str]) -> Iterator[Complaint]:
    """`roles`: of the files that it has."""
    yield from _args(profile)
    options = profile.options
    if not profile.devices:
        for name in sorted(DEVICE_OPTIONS & options.keys()):
            yield Complaint(path=("options", name), message=_NO_DEVICE)
    if "draft" not in roles:
        for name in sorted({*DRAFT_VALUES, "draft_type"} & options.keys()):
            yield Complaint(path=("options", name), message="needs `draft`: name the draft model's file")
    if "chat_template" in roles and "chat_template" in options:
        message = "`files` names a chat template too: leave one out"
        yield Complaint(path=("options", "chat_template"), message=message)
    if _is_a_mere_name(profile):
        message = "is no Jinja text, and no name but chatml is known to it: write it out, or set `jinja: false`"
        yield Complaint(path=("options", "chat_template"), message=message)
    for role in sorted(options.get("lora_scales", {}).keys() - roles):
        yield Complaint(path=("options", "lora_scales", role), message="`files` has no adapter of that role")
    for index, override in enumerate(options.get("override_tensor", ())):
        if not is_pattern(override.partition("=")[0]):
            message = "what stands before '=' must be a regular expression"
            yield Complaint(path=("options", "override_tensor", index), message=message)


def _is_a_mere_name(profile: ProfileSpec) -> bool:
    """With Jinja llama.cpp takes an unknown name for the template: every prompt would be that one word, and no error
    tells."""
    template = profile.options.get("chat_template", "chatml")
    jinja = profile.options.get("jinja", True)
    for _, flag in flags(profile.args):
        jinja = {"--jinja": True, "--no-jinja": False}.get(flag, jinja)
    return jinja and template != "chatml" and re.search(r"\{[{%]", template) is None


def _args(profile: ProfileSpec) -> Iterator[Complaint]:
    for index, flag in flags(profile.args):
        if (advice := OWNED.get(flag)) is not None:
            yield Complaint(path=("args", index), message=f"{flag} is not for a profile to set: {advice}")
        elif not profile.devices and needs_device(flag):
            yield Complaint(path=("args", index), message=f"{flag} {_NO_DEVICE}")
