"""Who asks, what they may ask for, and how much of it: API keys as one gateway knows them. Pure.

As soon as there is a key, each request must bring one; revoked ones count, so that revoking the last does not open the
gateway to everybody. Limits are this gateway's own: of several, each grants them.
"""

import hmac
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from llmgw.gateway.openai import CLASSES, ApiError, Code
from llmgw.store.tokens import digest, id_of
from llmgw.store.values import ApiKey
from llmgw.units import Wall, format_seconds

MINUTE: Final = 60.0
_NOTHING: Final = 1e-6
"""Seconds: less than that is what adding up many of them leaves."""
_NO_DIGEST: Final = "0" * 64


class Bucket:
    """So much a minute, in bursts of up to a minute's worth. It is overdrawn by what is known only afterwards.

    Kept as the moment at which it will be full again: the generic cell rate algorithm (ITU-T I.371), which needs no
    timer and one number.
    """

    __slots__ = ("_each", "_full_at", "per_minute")

    def __init__(self, per_minute: int) -> None:
        """Full. `now` is of one clock throughout, in seconds."""
        self.per_minute = per_minute
        self._each = MINUTE / per_minute
        self._full_at = float("-inf")

    def until(self, amount: float, now: float) -> float:
        """Seconds until `amount` is in it; 0: it is."""
        missing = self._full_at - now
        wait = amount * self._each - MINUTE + (missing if missing > 0 else 0.0)
        return wait if wait > _NOTHING else 0.0

    def take(self, amount: float, now: float) -> None:
        """Whether that is in it or not."""
        self._full_at = (max(now, self._full_at)) + amount * self._each


class Credential(NamedTuple):
    """A token as it was sent, once it need not be known any more. `id` None: none of ours."""

    id: str | None
    digest: str

    @classmethod
    def of(cls, token: bytes) -> "Credential":
        return cls(id_of(token), digest(token))


class Mean:
    """Of seconds: their sum, and how many there were. Keys are many, and their quantiles are in the access log."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds


class Caller:
    """One key's doings, for as long as there is the key. `key` None: whoever asks where no key is needed."""

    __slots__ = (
        "_requests", "_tokens", "answers", "cancelled", "duration", "first_byte", "first_token", "held", "hold",
        "in_flight", "key", "limited", "queue", "queued", "tokens_in", "tokens_out",
    )  # fmt: skip

    def __init__(self, key: ApiKey | None) -> None:
        self.key = key
        self.in_flight = 0
        self.answers: dict[str, int] = {}
        self.limited = self.cancelled = self.held = self.queued = 0
        self.hold, self.queue, self.first_byte, self.first_token, self.duration = (Mean() for _ in range(5))
        self.tokens_in = self.tokens_out = 0
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.take_over(key)

    @property
    def name(self) -> str:
        return "" if self.key is None else self.key.name

    def take_over(self, key: ApiKey | None) -> None:
        """The key as it is from now on. A limit that is as it was goes on where it is."""
        self.key = key
        self._requests = _bucket(self._requests, None if key is None else key.requests_per_minute)
        self._tokens = _bucket(self._tokens, None if key is None else key.tokens_per_minute)

    def may_ask(self, *names: str) -> bool:
        """For a model that goes by any of these."""
        allowed = self.key.models if self.key is not None else ()
        return not allowed or any(name in allowed for name in names)

    def enter(self, now: float) -> ApiError | None:
        """Begin a request: `leave` ends it. Or why it may not begin now."""
        key = self.key
        if key is None:
            self.in_flight += 1
            return None
        if key.concurrency is not None and self.in_flight >= key.concurrency:
            what = f"{self.in_flight} requests of key {key.name!r} are under way, as many as it may have"
            return self._refused(what, 1.0)
        requests, tokens = self._requests, self._tokens
        if requests is not None and (wait := requests.until(1.0, now)):
            return self._refused(f"key {key.name!r} may ask {requests.per_minute} times a minute", wait)
        if tokens is not None and (wait := tokens.until(1.0, now)):
            return self._refused(f"key {key.name!r} may use {tokens.per_minute} tokens a minute", wait)
        if requests is not None:
            requests.take(1.0, now)
        self.in_flight += 1
        return None

    def answered(self, status: int) -> None:
        kind = CLASSES[status // 100]
        self.answers[kind] = self.answers.get(kind, 0) + 1

    def leave(self) -> None:
        self.in_flight -= 1

    def used(self, tokens_in: int, tokens_out: int, now: float) -> None:
        """A request came to so many tokens, as its engine counts them."""
        self.tokens_in += tokens_in
        self.tokens_out += tokens_out
        if self._tokens is not None:
            self._tokens.take(tokens_in + tokens_out, now)

    def _refused(self, what: str, wait: float) -> ApiError:
        self.limited += 1
        after = max(1, math.ceil(wait))
        message = f"{what}; try again in {format_seconds(after)}"
        return ApiError(status=429, code=Code.RATE_LIMITED, message=message, retry_after=after)


def _bucket(before: Bucket | None, per_minute: int | None) -> Bucket | None:
    if per_minute is None:
        return None
    if before is not None and before.per_minute == per_minute:
        return before
    return Bucket(per_minute)


MISSING: Final = ApiError(
    status=401,
    code=Code.KEY_MISSING,
    message="an API key is needed: send `Authorization: Bearer sk-llmgw-…`; `llmgw keys create NAME` makes one",
)
WRONG: Final = ApiError(status=401, code=Code.KEY_WRONG, message="the API key is not known here")


def _revoked(key: ApiKey) -> ApiError:
    return ApiError(status=401, code=Code.KEY_REVOKED, message=f"the API key {key.name!r} was revoked")


@dataclass(slots=True)
class Keyring:
    """The keys there are, by id, each with its doings. Changed in place: what is under way keeps its `Caller`."""

    anonymous: Caller = field(default_factory=lambda: Caller(None))
    callers: Mapping[str, Caller] = field(default_factory=dict)
    required: bool = False

    def change(self, keys: Iterable[ApiKey], *, required: bool = False) -> None:
        """`required`: also where there are no keys."""
        callers: dict[str, Caller] = {}
        for key in keys:
            caller = self.callers.get(key.id)
            if caller is None:
                caller = Caller(key)
            else:
                caller.take_over(key)
            callers[key.id] = caller
        self.callers = callers
        self.required = required or bool(callers)

    def admit(self, credential: Credential | None, wall: Callable[[], Wall]) -> Caller | ApiError:
        """Whose request it is. `credential` None: there was none. `wall`: asked of keys that expire."""
        if not self.required:
            return self.anonymous
        if credential is None:
            return MISSING
        caller = self.callers.get(credential.id or "")
        key = None if caller is None else caller.key
        # Compared in any case, and in constant time: how long it takes tells nobody how near he came.
        same = hmac.compare_digest(credential.digest, _NO_DIGEST if key is None else key.digest)
        if caller is None or key is None or not same:
            return WRONG
        if key.revoked is not None:
            return _revoked(key)
        if key.expires is not None and key.expires <= wall():
            return ApiError(status=401, code=Code.KEY_EXPIRED, message=f"the API key {key.name!r} has expired")
        return caller

    def barred(self, caller: Caller) -> ApiError | None:
        """Why a request that was let in, and waits, may not be sent any more. None: it may. Of one that is late, that
        its key expired meanwhile is not its fault."""
        key = caller.key
        if key is None:
            return None
        if key.revoked is not None:
            return _revoked(key)
        return None if self.callers.get(key.id) is caller else WRONG

    def active(self) -> Collection[Caller]:
        """Those whose counts are told: with a key that is still good."""
        return [caller for caller in self.callers.values() if caller.key is not None and caller.key.revoked is None]
