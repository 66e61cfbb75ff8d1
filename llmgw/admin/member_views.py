"""Processes as rows. Pure; commands import it, so nothing here brings a web framework with it."""

from typing import Final

from llmgw.admin.reading import Seen
from llmgw.admin.shapes import MemberRow
from llmgw.store.values import Member, Role

_ORDER: Final = (Role.UP, Role.AGENT, Role.GATEWAY, Role.CONTROLLER)


def member_rows(seen: Seen) -> tuple[MemberRow, ...]:
    """Agents, gateways, controllers that stand by, and last the one that leads."""
    rows = [member_row(each, seen) for each in seen.members]
    return tuple(sorted(rows, key=lambda row: (_ORDER.index(Role(row.role)), row.state == "leads", row.name)))


def member_row(member: Member, seen: Seen) -> MemberRow:
    leads = member.role is Role.CONTROLLER and seen.leader is not None and seen.leader.name == member.name
    state = "" if member.role is not Role.CONTROLLER else "leads" if leads else "stands by"
    return MemberRow(
        role=member.role,
        name=member.name,
        state=state,
        since=seen.leader.at if leads and seen.leader is not None else member.since,
        started=member.since,
        version=member.version,
        host=member.host,
        pid=member.pid,
        url=member.url,
        serves=member.serves,
        instance=member.instance,
    )
