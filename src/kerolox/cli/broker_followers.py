"""``kerolox broker followers``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output
from kerolox.times import time_text

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.protocol.bodies.stats import ControlledStatus, HaClient, HaConnection, HaStatus

EXAMPLE = "Example: kerolox broker followers --broker broker-a"

ASK_S = 3.0
UNKNOWN = "-"  # value that Apache's brokers do not report
COLUMNS = (
    *("broker", "leader", "follower", "id", "connection", "acked", "behind", "for s", "in sync", "bytes/s"),
    "why",
)
KEYS = (
    *("broker", "leader", "follower", "id", "connection", "acked", "behindBytes", "behindSeconds", "inSync"),
    *("bytesPerSecond", "why"),
)
CONTROLLED_COLUMNS = (
    *("broker", "address", "id", "controller", "epoch", "leader id", "in sync", "confirmed", "lease s"),
    "waits for",
)
CONTROLLED_KEYS = (
    *("broker", "address", "id", "controller", "epoch", "leaderId", "inSync", "confirmed", "leaseSeconds"),
    "waitsFor",
)


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
    from kerolox.client.errors import NotFound

    async def work(admin: AdminCalls) -> list[_Found]:
        groups = {UNKNOWN: {-1: address}} if address is not None else await _groups(admin, broker)
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
    tables = [OutputTable(COLUMNS, [[_shown(row[key]) for key in KEYS] for row in rows])]
    if turned_away:
        lately = [
            (
                one["broker"],
                one["address"],
                time_text(one["timestamp"]),
                one["count"],
                one["why"],
                one["text"],
            )
            for one in turned_away
        ]
        columns = ("broker", "connection", "last", "times", "why", "text")
        tables.append(OutputTable(columns, lately, title="rejected in the last ten minutes"))
    shown = {"followers": rows, "turnedAway": turned_away}
    if controlled:
        shown["controlled"] = controlled
        lines = [[_shown(one[key]) for key in CONTROLLED_KEYS] for one in controlled]
        tables.append(OutputTable(CONTROLLED_COLUMNS, lines, title="under a controller"))
    output(json).show(shown, *tables)


class _Found(NamedTuple):
    """Tables about the brokers of one name."""

    rows: list[dict[str, Any]]
    turned_away: list[dict[str, Any]]
    controlled: list[dict[str, Any]]


def _shown(value: object) -> object:
    return UNKNOWN if value is None else value


async def _groups(admin: AdminCalls, broker: str | None) -> dict[str, dict[int, str]]:
    """Return broker name → address by id."""
    from kerolox.client.errors import NotFound
    from kerolox.errors import nearest

    table = (await admin.cluster_info()).broker_addr_table
    if broker is not None and broker not in table:
        known = ", ".join(sorted(table)) or "none"
        raise NotFound(f"broker {broker!r} is not registered. Registered: {known}.{nearest(broker, table)}")
    wanted = sorted(table) if broker is None else [broker]
    return {name: dict(sorted(table[name].broker_addrs.items())) for name in wanted}


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
    rows: list[dict[str, Any]] = []
    left = {id: (members[id], *status) for id, status in statuses.items() if id != leader}
    for connection in () if seen is None or not seen.master else seen.ha_connection_info:
        id = _who(connection, left)
        follower = None if id is None else left.pop(id)[0]
        row = {"broker": name, "leader": leader_address, "follower": follower, "id": id}
        rows.append(row | _connected(connection))
    for id, (follower, status, error) in left.items():
        own = None if status is None else status.ha_client_runtime_info
        why = error or (own and own.link_text) or "it is not connected to its leader"
        if leader is not None and seen is None:
            why = f"the leader does not report its followers: {statuses[leader][1]}"
        elif leader is None and id >= 0:
            why = f"no leader is registered; {why}"
        rows.append(
            {
                "broker": name,
                "leader": leader_address or (own and own.leader_address),
                "follower": follower,
                "id": id if id >= 0 else None,
                "connection": None,
                **_alone(own),
                "why": why,
            }
        )
    turned_away = [
        {
            "broker": name, "address": one.addr, "timestamp": one.timestamp, "count": one.count,
            "why": one.why, "text": one.text,
        }
        for one in (seen and seen.turned_away) or ()
    ]  # fmt: skip
    controlled = [
        _controlled(name, members[id], status.controlled)
        for id, (status, _) in statuses.items()
        if status is not None and status.controlled is not None
    ]
    return _Found(rows, turned_away, controlled)


def _controlled(name: str, address: str, told: ControlledStatus) -> dict[str, Any]:
    """Return the state of a broker under its controller."""
    in_sync = told.in_sync_set
    return {
        "broker": name,
        "address": address,
        "id": told.broker_id or None,
        "controller": told.controller or None,
        "epoch": told.master_epoch,
        "leaderId": told.master_broker_id or None,
        "inSync": None if in_sync is None else " ".join(map(str, in_sync)),
        "confirmed": told.confirmed_offset,
        "leaseSeconds": None if told.lease_ms is None else told.lease_ms / 1000,
        "waitsFor": told.waits_for,
    }


def _alone(own: HaClient | None) -> dict[str, Any]:
    """Return the fields of a follower that its leader does not report, from the follower's own status."""
    told = own is not None and own.leader_end is not None
    return {
        "acked": None if own is None else own.max_offset,
        "behindBytes": max(0, (own.leader_end or 0) - own.max_offset) if own is not None and told else None,
        "behindSeconds": None,
        "inSync": None if own is not None and own.link_state == "copying" else False,
        "bytesPerSecond": None,
    }


def _connected(one: HaConnection) -> dict[str, Any]:
    has_said = one.slave_ack_offset >= 0
    behind = "haMaxGapNotInSync" if one.broker_id is None else "not in the in-sync set"
    why = "" if one.in_sync else f"it is too far behind ({behind})"
    return {
        "connection": one.addr,
        "acked": one.slave_ack_offset if has_said else None,
        "behindBytes": one.diff if has_said else None,
        "behindSeconds": None if one.behind_ms is None else one.behind_ms / 1000,
        "inSync": one.in_sync,
        "bytesPerSecond": one.transferred_byte_in_second,
        "why": why if has_said else "it has not reported the end of its log yet",
    }


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
