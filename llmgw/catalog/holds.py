"""Why a valid revision waits. Pure values."""

from dataclasses import dataclass
from enum import StrEnum


class HoldReason(StrEnum):
    """Why a valid revision is not put in force. One CamelCase word, as conditions have them."""

    REMOVAL = "RemovalHeld"  #: it removes all models, or most of them
    PROTECTED = "RemovalProtected"  #: it removes what is protected
    UNSIGNED = "Unsigned"  #: nobody who is allowed to has signed it
    SUSPENDED = "CatalogSuspended"
    ROLLED_BACK = "RolledBack"
    MANUAL = "AwaitsApply"

    @property
    def is_expected(self) -> bool:
        """The operator said so: nothing is wrong."""
        return self in (HoldReason.SUSPENDED, HoldReason.ROLLED_BACK, HoldReason.MANUAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A valid revision that waits. `models`: those that it would remove; `message` says what to do."""

    reason: HoldReason
    message: str
    models: tuple[str, ...] = ()
