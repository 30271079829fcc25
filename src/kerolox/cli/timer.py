"""``kerolox timer``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls

app = typer.Typer(help="Show scheduled messages.", no_args_is_help=True)

_DUE = "timerDueWithin_"
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@app.command("pending", epilog="Example: kerolox timer pending --json")
@one_line_errors
def pending(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster. Default: all clusters.")] = None,
    broker: Annotated[str | None, typer.Option(help="Name of the broker. Default: all brokers.")] = None,
    json: JsonFlag = False,
) -> None:
    """Show the number of scheduled messages, by time of delivery and by topic."""

    async def work(admin: AdminCalls) -> list[dict[str, Any]]:
        from kerolox.client.admin.calls import at_all

        brokers = await admin.masters(cluster=cluster, broker=broker)
        found = await at_all(brokers, lambda address: _ask(admin, address))
        return [{"broker": name, "address": brokers[name], **figures} for name, figures in found.items()]

    brokers = run_admin(nameserver, work)
    due = [
        (each["broker"], _span(low), _span(high), count)
        for each in brokers
        for (low, high), count in _steps(each["dueWithin"]).items()
    ]
    topics = [
        (each["broker"], topic, count) for each in brokers for topic, count in sorted(each["topics"].items())
    ]
    figures = [(each["broker"], each["waiting"], each["notEntered"], each["lateS"]) for each in brokers]
    tables = [OutputTable(("broker", "waiting", "not yet entered", "late by s"), figures)]
    if due:
        tables.append(OutputTable(("broker", "due from", "to", "messages"), due))
    if topics:
        tables.append(OutputTable(("broker", "topic", "messages"), topics))
    output(json).show(brokers, *tables)


async def _ask(admin: AdminCalls, address: str) -> dict[str, Any]:
    from kerolox.protocol.bodies.stats import TimerMetrics
    from kerolox.protocol.codes import RequestCode, ResponseCode

    info = await admin.runtime_info(address)
    # A broker without a timer answers with an error.
    answer = await admin.ask(address, RequestCode.GET_TIMER_METRICS, ok=(0, ResponseCode.SYSTEM_ERROR, 3))
    topics = TimerMetrics.decode(answer.body).timing_count if answer.code == 0 else {}
    return {
        "waiting": int(info.get("timerCongestNum", 0)),
        "notEntered": int(info.get("timerOffsetBehind", 0)),
        "lateS": int(info.get("timerReadBehind", 0)),
        # Apache's brokers do not report these.
        "dueWithin": {
            key.removeprefix(_DUE): int(value)
            for key, value in sorted(info.items(), key=lambda item: (len(item[0]), item[0]))
            if key.startswith(_DUE)
        },
        "topics": {topic: metric.count for topic, metric in topics.items() if metric.count},
    }


def _steps(due: dict[str, int]) -> dict[tuple[int, int], int]:
    """Return the intervals between the bounds that contain messages, with their counts."""
    bounds = sorted(map(int, due))
    return {
        (low, high): due[str(high)] for low, high in zip((0, *bounds), bounds, strict=False) if due[str(high)]
    }


def _span(seconds: int) -> str:
    """``14400`` → ``4 h``."""
    if not seconds:
        return "now"
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    return f"{seconds // size} {unit}"
