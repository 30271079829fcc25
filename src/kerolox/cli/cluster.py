"""``kerolox cluster``"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kerolox.cli import cluster_up
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, column, command, output, row, table

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls

app = typer.Typer(help="List clusters, or run one on this machine.", no_args_is_help=True)

app.command("up", epilog=cluster_up.UP_EXAMPLE)(cluster_up.up)
app.command("status", epilog=cluster_up.STATUS_EXAMPLE)(cluster_up.status)
app.command("down", epilog=cluster_up.DOWN_EXAMPLE)(cluster_up.down)

ASK_S = 1.5  # a broker that does not answer within this time is listed without statistics


@row
class BrokerRow:
    """Registered broker. Its statistics are None if it does not answer."""

    cluster: str
    broker: str
    id: int
    role: str
    address: str
    zone: str | None
    version: str | None
    in_tps: float | None = column("in/s")
    out_tps: float | None = column("out/s")
    in_today: int | None
    out_today: int | None
    disk_used: float | None = column("disk")
    active: bool | None


@command(app, "list", "kerolox cluster list -n '10.0.0.1:9876;10.0.0.2:9876'")
def list_clusters(nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False) -> None:
    """List clusters and their registered brokers, with version, rates and disk usage."""

    async def work(admin: AdminCalls) -> list[BrokerRow]:
        import asyncio

        info = await admin.cluster_info()
        return await asyncio.gather(
            *(
                _broker_row(admin, cluster, name, id, address, info.broker_addr_table[name].zone_name)
                for cluster, names in sorted(info.cluster_addr_table.items())
                for name in sorted(names)
                if name in info.broker_addr_table
                for id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
            )
        )

    brokers = run_admin(nameserver, work)
    output(json).show(brokers, table(BrokerRow, brokers, empty=f"no broker is registered at {nameserver}"))


async def _broker_row(
    admin: AdminCalls, cluster: str, name: str, id: int, address: str, zone: str | None
) -> BrokerRow:
    """Ask a broker for its statistics."""
    from kerolox.errors import KeroloxError

    try:
        info = await admin.runtime_info(address, timeout_s=ASK_S)
    except KeroloxError:
        info = {}
    return BrokerRow(
        cluster,
        name,
        id,
        "master" if id == 0 else "slave",
        address,
        zone,
        version=info.get("brokerVersionDesc"),
        in_tps=_rate(info.get("putTps")),
        out_tps=_rate(info.get("getTransferredTps") or info.get("getTransferedTps")),
        in_today=_difference(info, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        out_today=_difference(info, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        disk_used=_rate(info.get("commitLogDiskRatio")),
        active=None if not info else info.get("brokerActive") == "true",
    )


def _rate(text: str | None) -> float | None:
    """Return the first number of a text; None if there is none."""
    try:
        return round(float((text or "").split()[0]), 2)
    except (ValueError, IndexError):
        return None


def _difference(info: dict[str, str], now: str, before: str) -> int | None:
    try:
        return int(info[now]) - int(info[before])
    except (KeyError, ValueError):
        return None
