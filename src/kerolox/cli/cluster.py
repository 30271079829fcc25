"""``kerolox cluster``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from kerolox.cli import cluster_up
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls

app = typer.Typer(help="List clusters, or run one on this machine.", no_args_is_help=True)

app.command("up", epilog=cluster_up.UP_EXAMPLE)(cluster_up.up)
app.command("status", epilog=cluster_up.STATUS_EXAMPLE)(cluster_up.status)
app.command("down", epilog=cluster_up.DOWN_EXAMPLE)(cluster_up.down)

ASK_S = 1.5  # a broker that does not answer within this time is listed without statistics


@app.command("list", epilog="Example: kerolox cluster list -n '10.0.0.1:9876;10.0.0.2:9876'")
@one_line_errors
def list_clusters(nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False) -> None:
    """List clusters and their registered brokers, with version, rates and disk usage."""

    async def work(admin: AdminCalls) -> list[dict[str, Any]]:
        import asyncio

        info = await admin.cluster_info()
        brokers: list[dict[str, Any]] = [
            {
                "cluster": cluster,
                "broker": name,
                "id": id,
                "role": "master" if id == 0 else "slave",
                "address": address,
                "zone": info.broker_addr_table[name].zone_name,
            }
            for cluster, names in sorted(info.cluster_addr_table.items())
            for name in sorted(names)
            if name in info.broker_addr_table
            for id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
        ]
        figures = await asyncio.gather(*(ask_figures(admin, broker["address"]) for broker in brokers))
        return [broker | found for broker, found in zip(brokers, figures, strict=True)]

    brokers = run_admin(nameserver, work)
    columns = (
        *("cluster", "broker", "id", "role", "address", "zone"),
        *("version", "in/s", "out/s", "in today", "out today", "disk", "active"),
    )
    rows = [tuple(broker.values()) for broker in brokers]
    output(json).show(brokers, OutputTable(columns, rows, empty=f"no broker is registered at {nameserver}"))


async def ask_figures(admin: AdminCalls, address: str) -> dict[str, Any]:
    """Return the statistics of a broker; every value is None if it does not answer."""
    from kerolox.errors import KeroloxError

    try:
        info = await admin.runtime_info(address, timeout_s=ASK_S)
    except KeroloxError:
        info = {}
    return {
        "version": info.get("brokerVersionDesc"),
        "inTps": _rate(info.get("putTps")),
        "outTps": _rate(info.get("getTransferredTps") or info.get("getTransferedTps")),
        "inToday": _difference(info, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        "outToday": _difference(info, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        "diskUsed": _rate(info.get("commitLogDiskRatio")),
        "active": None if not info else info.get("brokerActive") == "true",
    }


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
