"""Every key there is, and which of them outlive the process."""

from typing import Final

from llmgw.ids import ContentId, Digest, ModelName, NodeName, ReplicaId, SpecDigest

STOPPED: Final = "settings/stopped"  #: plan.Stopped
CATALOG: Final = "catalog/"  #: followed by every agent: only what changes with a revision
APPLIED: Final = "catalog/applied"  #: values.Applied
CATALOG_STATUS: Final = "status/catalog"  #: values.CatalogStatus
HISTORY: Final = "catalog/history/"  #: values.HistoryEntry
NOTIFIED: Final = "notified/"  #: values.Notified
ROLLOUTS: Final = "catalog/rollouts/"  #: plan.Rollout
PARTS: Final = "catalog/parts/"  #: values.CatalogPart, by content
SPECS: Final = "catalog/specs/"  #: catalog.spec.ModelSpec, by name and content
MODELS: Final = "catalog/models/"  #: catalog.spec.ModelSpec, as llmgw kept them before SPECS: read, not written
RECOVERY: Final = "recovery/"  #: facts.RecoveryRecord
MEASURED: Final = "measured/"  #: facts.Measured
CONCURRENCY: Final = "concurrency/"  #: facts.Concurrency
ASKS: Final = "asks/"  #: facts.Ask
SCALING: Final = "scaling/"  #: facts.ScalingState
CORDONS: Final = "settings/cordons/"  #: facts.Cordon
SETTINGS: Final = "settings/"
SUSPENDED: Final = "settings/catalog/suspended"  #: facts.Suspension
PINNED: Final = "settings/catalog/pinned"  #: values.Pinned
APPROVED: Final = "settings/catalog/approved"  #: values.Approval
SUSPENSIONS: Final = "settings/suspensions/"  #: facts.Suspension
API_KEYS: Final = "keys/"  #: values.ApiKey, by name
NODES: Final = "nodes/"
ENDPOINTS: Final = "endpoints/"  #: plan.Endpoint
EXPLAIN: Final = "explain/"  #: plan.ModelStatus
USAGE: Final = "usage/"  #: facts.Usage
LEADER: Final = "leader"  #: election.Leader; there while its controller leads
CLUSTER: Final = "cluster"  #: values.ClusterIdentity
MEMBERS: Final = "members/"  #: values.Member; there while its process lives
RESTARTS: Final = "restarts/"  #: values.RestartOrder
EVENTS: Final = "events/"  #: values.ToldEvents
FETCHES: Final = "fetches/"  #: values.FetchClaim; there while its node fetches from outside, and a while longer
UPKEEP_ORDERS: Final = "upkeep/orders/"  #: values.UpkeepOrder; there while whoever asks waits for the answer
UPKEEP_ANSWERS: Final = "upkeep/answers/"  #: values.UpkeepAnswer

DURABLE: Final = (
    SETTINGS, APPLIED, HISTORY, RECOVERY, MEASURED, CONCURRENCY, ASKS, SCALING, API_KEYS, ROLLOUTS, NOTIFIED,
)  # fmt: skip
"""Prefixes that the embedded store keeps on disk. The rest is rebuilt from what runs."""


def history(number: int) -> str:
    """Zero-padded, so that key order is age order."""
    return f"{HISTORY}{number:08d}"


def part(content: ContentId) -> str:
    return f"{PARTS}{content}"


def spec(name: ModelName, content: ContentId) -> str:
    return f"{SPECS}{name}/{content}"


def model(digest: Digest, name: ModelName) -> str:
    return f"{MODELS}{digest}/{name}"


def rollout(name: ModelName) -> str:
    return f"{ROLLOUTS}{name}"


def notified(target: str) -> str:
    return f"{NOTIFIED}{target}"


def recovery(spec: SpecDigest, node: NodeName) -> str:
    return f"{RECOVERY}{spec}/{node}"


def measured(spec: SpecDigest, node: NodeName) -> str:
    return f"{MEASURED}{spec}/{node}"


def concurrency(spec: SpecDigest, node: NodeName) -> str:
    return f"{CONCURRENCY}{spec}/{node}"


def ask(name: ModelName) -> str:
    return f"{ASKS}{name}"


def scaling(name: ModelName) -> str:
    return f"{SCALING}{name}"


def cordon(node: NodeName) -> str:
    return f"{CORDONS}{node}"


def suspension(name: ModelName) -> str:
    return f"{SUSPENSIONS}{name}"


def api_key(name: str) -> str:
    return f"{API_KEYS}{name}"


def report(node: NodeName) -> str:
    """facts.NodeReport"""
    return f"{NODES}{node}/report"


def is_report(key: str) -> bool:
    return key.startswith(NODES) and key.endswith("/report")


def assignments(node: NodeName) -> str:
    return f"{NODES}{node}/assignments/"


def assignment(node: NodeName, replica: ReplicaId) -> str:
    """plan.Assignment"""
    return f"{NODES}{node}/assignments/{replica}"


def endpoints(node: NodeName) -> str:
    """By node: each agent follows those of its own replicas, gateways all."""
    return f"{ENDPOINTS}{node}/"


def endpoint(node: NodeName, replica: ReplicaId) -> str:
    return f"{ENDPOINTS}{node}/{replica}"


def explain(name: ModelName) -> str:
    return f"{EXPLAIN}{name}"


def usage(gateway: str) -> str:
    return f"{USAGE}{gateway}"


def member(role: str, name: str) -> str:
    return f"{MEMBERS}{role}/{name}"


def restart(role: str, name: str) -> str:
    return f"{RESTARTS}{role}/{name}"


def events(role: str, name: str) -> str:
    return f"{EVENTS}{role}/{name}"


def fetch(entry: str) -> str:
    return f"{FETCHES}{entry}"


def upkeep_order(node: NodeName, order: str) -> str:
    return f"{UPKEEP_ORDERS}{node}/{order}"


def upkeep_answer(node: NodeName, order: str) -> str:
    return f"{UPKEEP_ANSWERS}{node}/{order}"


def last(key: str) -> str:
    """The part after the last slash: the id or name that the key is about."""
    return key.rpartition("/")[2]
