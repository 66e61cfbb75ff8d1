"""What an engine plugin implements. Methods are pure unless they say otherwise: they return requests and launch
specs for the agent to carry out, and read answers that it brings."""

import hmac
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Final

from llmgw.catalog.rules import Complaint
from llmgw.catalog.spec import ProfileSpec
from llmgw.facts import EngineFact, EngineLoad, Exit, FailureKind, Footprint, Level, WeightsFact
from llmgw.ids import EngineName, ModelName, NodeName, ReplicaId
from llmgw.weights.api import API_VERSION as API_VERSION

KEY_VARIABLE: Final = "LLMGW_ENGINE_KEY"
"""The environment variable in which every engine process finds its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where one replica runs: what the agent gives an engine to launch with."""

    replica: ReplicaId
    model: ModelName
    node: NodeName
    host: str  #: the address to listen on
    port: int
    directory: Path  #: the replica's own, for scratch files
    files: Mapping[str, Path] = field(default_factory=dict)  #: by role: "weights", "draft", and those of `files`
    devices: tuple[str, ...] = ()  #: UUIDs of the accelerators it may use; none: the CPU
    device_share: float | None = None
    """The part of each of its accelerators' memory that it was placed for, of the smallest. None: it has none, or what
    they hold is not known."""
    draft_url: str | None = None  #: of the companion that drafts for it: the base of its API, without a trailing slash


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A process to start. The agent adds to `env`: its own variables and the engine's key (KEY_VARIABLE).

    `url` is the base of the engine's HTTP API, without a trailing slash. `key_variables`: further variables in which
    the program looks for the key it is to demand (`VLLM_API_KEY`); `key_file`: a file that the key is written to, for
    programs that read it from one. It must lie in the slot's directory. `stop_argv` is run before the process is
    signalled, and when it has died, where ending the process does not end the service.
    """

    argv: Sequence[str]
    url: str
    env: Mapping[str, str] = field(default_factory=dict)
    key_variables: Sequence[str] = ()
    stop_argv: Sequence[str] | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request for the agent to send to the engine, with its key as a bearer token."""

    path: str
    method: str = "GET"
    body: bytes | None = None
    timeout: float = 10.0  #: seconds


class Readiness(StrEnum):
    READY = "ready"
    LOADING = "loading"
    BROKEN = "broken"  #: answers, and will never be ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a failed process died of. `port_clash`: it lost its port to another program, which is no failure.
    `damaged`: a file that it was given may not be what was fetched: it is hashed then, and fetched anew if so.
    """

    kind: FailureKind
    reason: str
    port_clash: bool = False
    damaged: bool = False


class Engine(ABC):
    """A kind of engine. One object serves all replicas; it holds no state."""

    name: ClassVar[EngineName]
    api_version: ClassVar[int] = API_VERSION
    options_schema: ClassVar[Mapping[str, Any]] = {"type": "object", "additionalProperties": False}
    """JSON Schema (draft 2020-12) of a profile's `options`."""
    needs_weights: ClassVar[bool] = True
    """Whether a profile without `weights` is an error."""
    roles: ClassVar[frozenset[str] | None] = frozenset({"weights"})
    """The files it can use: `weights`, `draft`, and names that it defines for `files`. None: any."""

    def check(self, profile: ProfileSpec) -> Sequence[Complaint]:
        """What is wrong with a profile that fits `options_schema`, and no schema can say. Asked when a catalog is
        loaded, on any machine: it must not look at this one."""
        return ()

    @abstractmethod
    def fingerprint(self) -> EngineFact:
        """Whether this node can run the engine. May run programs; called in a worker thread, 10 s at most."""

    @abstractmethod
    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        """Estimated memory, or None when it cannot be told from what is known. Never a zero for unknown.

        `files` holds what is on the node, by role: before a fetch, nothing.
        """

    def shrink(self, profile: ProfileSpec, level: Level) -> ProfileSpec | None:
        """The profile made smaller to fit: for `degraded`, then for `minimal`. None: it cannot be."""
        return None

    @abstractmethod
    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        """What to start. Starts nothing. Raises EngineUnavailable when this node cannot."""

    def probes(self, profile: ProfileSpec) -> Sequence[HttpRequest]:
        """Requests that must each be answered READY, in order, before the replica counts as ready: health first,
        then where the engine can a one-token decode, since an open port proves nothing."""
        return (HttpRequest(path="/health"),)

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        """What an answer means. Connection refused never gets here: the agent takes it for LOADING."""
        return Readiness.READY if status == 200 else Readiness.LOADING

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        """The request that tells how busy the engine is; None: it cannot tell."""
        return None

    def read_load(self, status: int, body: bytes) -> EngineLoad | None:
        """None: unreadable."""
        return None

    def read_load_of(self, profile: ProfileSpec, status: int, body: bytes) -> EngineLoad | None:
        """As `read_load`, which it calls: for engines where the profile says what to read."""
        return self.read_load(status, body)

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        """What an unrequested exit means, from its status and the last 64 KiB of its log."""
        return Verdict(kind=FailureKind.CRASH, reason=f"ended with {exit}")

    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        """The paths under /v1/ that it serves: `chat/completions`, `embeddings`, ..."""
        return frozenset({"chat/completions", "completions"})

    def request_slots(self, profile: ProfileSpec) -> int | None:
        """How many requests it works on at once, where further ones would only wait inside it: gateways keep those
        back, and share the slots among API keys. None: it takes what comes."""
        return None


def declared_surfaces(engine: Engine, profile: ProfileSpec) -> tuple[str, ...] | None:
    """What it says that it serves, sorted. None: it leaves `surfaces` as the base class has it, and so says nothing: it
    may serve anything."""
    return None if type(engine).surfaces is Engine.surfaces else tuple(sorted(engine.surfaces(profile)))


def engine_key(secret: bytes, replica: ReplicaId) -> str:
    """The key one engine demands: HMAC-SHA256(cluster secret, replica id), in hex. Derived, so never stored."""
    return hmac.digest(secret, replica.encode(), "sha256").hex()
