"""``kerolox broker followers``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, column, one_line_errors, output, row, table
from kerolox.times import time_text

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.protocol.bodies.stats import ControlledStatus, HaConnection, HaStatus

EXAMPLE = "Example: kerolox broker followers --broker broker-a"

ASK_S = 3.0
UNKNOWN = "-"  # value that Apache's brokers do not report


@row
class FollowerRow:
    """Follower of a leader, as reported by the leader, or by itself if the leader does not know it."""

    broker: str
    leader: str | None
    follower: str | None
    id: int | None
    connection: str | None
    acked: int | None
    behind_bytes: int | None = column("behind")
    behind_seconds: float | None = column("for s")
    in_sync: bool | None
    bytes_per_second: int | None = column("bytes/s")
    why: str | None


@row
class RejectedRow:
    """Connection that a leader rejected."""

    broker: str
    address: str | None = column("connection")
    timestamp: int = column("last", time_text)
    count: int = column("times")
    why: str | None
    text: str | None


@row
class ControlledRow:
    """State of a broker under its controller."""

    broker: str
    address: str
    id: int | None
    controller: str | None
    epoch: int
    leader_id: int | None
    in_sync: str | None
    confirmed: int | None
    lease_seconds: float | None = column("lease s")
    waits_for: str | None


@one_line_errors
def show(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    broker: Annotated[
        str | None, typer.Option(help="Name of the broker. Default: all brokers.", metavar="NAME")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", "-b", help="Address of the broker, without name servers.", metavar="HOST:PORT"
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show the followers of each leader: acknowledged offset, lag, and why a follower does not replicate."""
    from kerolox.client.admin.servers import Servers
    from kerolox.client.errors import NotFound

    async def work(admin: AdminCalls) -> list[_Found]:
        groups = {UNKNOWN: {-1: address}} if address is not None else await Servers(admin).groups(broker)
        return [await _of_group(admin, name, members) for name, members in groups.items()]

    found = run_admin(nameserver, work)
    rows = [row for group in found for row in group.rows]
    turned_away = [one for group in found for one in group.turned_away]
    controlled = [one for group in found for one in group.controlled]
    if not rows and not turned_away and not controlled:
        where = f"the broker at {address}" if address else broker or f"any broker at {nameserver}"
        raise NotFound(
            f"{where} has no follower. A follower needs its leader's brokerName and brokerClusterName, "
            "brokerRole=SLAVE and a brokerId above 0"
        )
    tables = [table(FollowerRow, rows, unknown=UNKNOWN)]
    if turned_away:
        tables.append(table(RejectedRow, turned_away, title="rejected in the last ten minutes"))
    shown: dict[str, object] = {"followers": rows, "turnedAway": turned_away}
    if controlled:
        shown["controlled"] = controlled
        tables.append(table(ControlledRow, controlled, title="under a controller", unknown=UNKNOWN))
    output(json).show(shown, *tables)


class _Found(NamedTuple):
    """Rows about the brokers of one name."""

    rows: list[FollowerRow]
    turned_away: list[RejectedRow]
    controlled: list[ControlledRow]


async def _of_group(admin: AdminCalls, name: str, members: dict[int, str]) -> _Found:
    """Return the followers of one broker name, as reported by the leader and by the followers."""
    import asyncio

    asked = await asyncio.gather(*(_ask(admin, address) for address in members.values()))
    statuses = dict(zip(members, asked, strict=True))
    leader = next((id for id, (found, _) in statuses.items() if found is not None and found.master), None)
    if leader is None and 0 in members:
        leader = 0  # it does not answer, or does not support the request
    seen = None if leader is None else statuses[leader][0]
    leader_address = None if leader is None else members[leader]
    rows: list[FollowerRow] = []
    left = {id: (members[id], *status) for id, status in statuses.items() if id != leader}
    for connection in () if seen is None or not seen.master else seen.ha_connection_info:
        id = _who(connection, left)
        follower = None if id is None else left.pop(id)[0]
        rows.append(_connected(name, leader_address, follower, id, connection))
    for id, (follower, status, error) in left.items():
        own = None if status is None else status.ha_client_runtime_info
        why = error or (own and own.link_text) or "it is not connected to its leader"
        if leader is not None and seen is None:
            why = f"the leader does not report its followers: {statuses[leader][1]}"
        elif leader is None and id >= 0:
            why = f"no leader is registered; {why}"
        end = None if own is None else own.leader_end
        rows.append(
            FollowerRow(
                name,
                leader_address or (None if own is None else own.leader_address),
                follower,
                id if id >= 0 else None,
                connection=None,
                acked=None if own is None else own.max_offset,
                behind_bytes=None if own is None or end is None else max(0, end - own.max_offset),
                behind_seconds=None,
                in_sync=None if own is not None and own.link_state == "copying" else False,
                bytes_per_second=None,
                why=why,
            )
        )
    turned_away = [
        RejectedRow(name, one.addr, one.timestamp, one.count, one.why, one.text)
        for one in (seen and seen.turned_away) or ()
    ]
    controlled = [
        _controlled(name, members[id], status.controlled)
        for id, (status, _) in statuses.items()
        if status is not None and status.controlled is not None
    ]
    return _Found(rows, turned_away, controlled)


def _controlled(name: str, address: str, told: ControlledStatus) -> ControlledRow:
    """Return the state of a broker under its controller."""
    in_sync = told.in_sync_set
    return ControlledRow(
        name,
        address,
        told.broker_id or None,
        told.controller or None,
        told.master_epoch,
        told.master_broker_id or None,
        None if in_sync is None else " ".join(map(str, in_sync)),
        told.confirmed_offset,
        None if told.lease_ms is None else told.lease_ms / 1000,
        told.waits_for,
    )


def _connected(
    name: str, leader: str | None, follower: str | None, id: int | None, one: HaConnection
) -> FollowerRow:
    """Return the row of a follower that is connected to its leader."""
    has_said = one.slave_ack_offset >= 0
    behind = "haMaxGapNotInSync" if one.broker_id is None else "not in the in-sync set"
    why = "" if one.in_sync else f"it is too far behind ({behind})"
    return FollowerRow(
        name,
        leader,
        follower,
        id,
        one.addr,
        acked=one.slave_ack_offset if has_said else None,
        behind_bytes=one.diff if has_said else None,
        behind_seconds=None if one.behind_ms is None else one.behind_ms / 1000,
        in_sync=one.in_sync,
        bytes_per_second=one.transferred_byte_in_second,
        why=why if has_said else "it has not reported the end of its log yet",
    )


def _who(connection: HaConnection, left: dict[int, tuple[str, HaStatus | None, str]]) -> int | None:
    """Return the id of the registered follower of a connection; None if it cannot be identified.

    The connection is identified by the broker id (under a controller), by the local address that kerolox's
    followers report, or by the host, if only one follower runs there.
    """
    if connection.broker_id is not None and connection.broker_id in left:
        return connection.broker_id
    host = (connection.addr or "").rpartition(":")[0]
    near: list[int] = []
    for id, (address, status, _) in left.items():
        own = None if status is None else status.ha_client_runtime_info.link_address
        if own and own == connection.addr:
            return id
        if not own and address.rpartition(":")[0] == host:
            near.append(id)
    return near[0] if len(near) == 1 else None


async def _ask(admin: AdminCalls, address: str) -> tuple[HaStatus | None, str]:
    from kerolox.errors import KeroloxError

    try:
        status = await admin.ha_status(address, timeout_s=ASK_S)
    except KeroloxError as error:
        return None, str(error)
    return (
        status,
        ""
        if status is not None
        else f"{address} is a RocketMQ 4 broker, which does not report its followers",
    )
