"""What gateways say of requests in flight, and when a draining replica has none left."""

from llmgw.facts import Usage
from llmgw.ids import ReplicaId
from llmgw.units import Wall


class Traffic:
    """The agent's view of `usage/*` and `endpoints/*`."""

    def __init__(self) -> None:
        self._usage: dict[str, Usage] = {}
        self._endpoints: dict[ReplicaId, int | None] = {}  # the revision of its withdrawal; None: published

    def set_usage(self, gateway: str, usage: Usage | None) -> None:
        """None: the gateway is gone."""
        if usage is None:
            self._usage.pop(gateway, None)
        else:
            self._usage[gateway] = usage

    def published(self, replica: ReplicaId) -> None:
        self._endpoints[replica] = None

    def is_published(self, replica: ReplicaId) -> bool:
        return self._endpoints.get(replica, 0) is None

    def withdrawn(self, replica: ReplicaId, revision: int) -> None:
        """At that store revision."""
        self._endpoints[replica] = revision

    def forget(self, replica: ReplicaId) -> None:
        self._endpoints.pop(replica, None)

    def outstanding(self, replica: ReplicaId) -> int:
        """Requests in flight there, over all gateways."""
        found = (usage.replicas.get(replica) for usage in self._usage.values())
        return sum(use.outstanding for use in found if use)

    def heard(self, replica: ReplicaId) -> Wall | None:
        """When bytes of an answer came from there last, by the gateways' clocks. None: nobody says."""
        found = (usage.replicas.get(replica) for usage in self._usage.values())
        return max((use.heard for use in found if use and use.heard is not None), default=None)

    def failures(self, replica: ReplicaId) -> int:
        """Requests that went wrong there, as far back as the gateways that there are now know."""
        found = (usage.replicas.get(replica) for usage in self._usage.values())
        return sum(use.failures for use in found if use)

    def drained(self, replica: ReplicaId, asked: int) -> bool:
        """Whether no gateway has a request there or will send one.

        `asked`: the store revision of the stop. Every gateway must have seen the endpoint's withdrawal, which comes in
        the same transaction or before. An endpoint that was never published was never withdrawn: nothing to be seen.
        """
        if self.outstanding(replica):
            return False
        if replica not in self._endpoints:
            return True
        withdrawn = self._endpoints[replica]
        needed = asked if withdrawn is None else withdrawn
        return all(usage.seen >= needed for usage in self._usage.values())
