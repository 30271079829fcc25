"""``kerolox timer``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, OutputTable, column, command, output, row, table

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls

app = typer.Typer(help="Show scheduled messages.", no_args_is_help=True)

_DUE = "timerDueWithin_"
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@row
class TimerRow:
    """Scheduled messages of a broker."""

    broker: str
    address: str = column(None)
    waiting: int
    not_entered: int = column("not yet entered")
    late_s: int = column("late by s")
    due_within: dict[str, int] = column(None)
    topics: dict[str, int] = column(None)


@command(app, "pending", "kerolox timer pending --json")
def pending(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster. Default: all clusters.")] = None,
    broker: Annotated[str | None, typer.Option(help="Name of the broker. Default: all brokers.")] = None,
    json: JsonFlag = False,
) -> None:
    """Show the number of scheduled messages, by time of delivery and by topic."""

    async def work(admin: AdminCalls) -> list[TimerRow]:
        from kerolox.client.admin.calls import at_all

        brokers = await admin.masters(cluster=cluster, broker=broker)
        found = await at_all(brokers, lambda address: _ask(admin, address))
        return [TimerRow(name, brokers[name], *figures) for name, figures in found.items()]

    brokers = run_admin(nameserver, work)
    due = [
        (each.broker, _span(low), _span(high), count)
        for each in brokers
        for (low, high), count in _steps(each.due_within).items()
    ]
    topics = [(each.broker, topic, count) for each in brokers for topic, count in sorted(each.topics.items())]
    tables = [table(TimerRow, brokers)]
    if due:
        tables.append(OutputTable(("broker", "due from", "to", "messages"), due))
    if topics:
        tables.append(OutputTable(("broker", "topic", "messages"), topics))
    output(json).show(brokers, *tables)


async def _ask(admin: AdminCalls, address: str) -> tuple[int, int, int, dict[str, int], dict[str, int]]:
    """Return the figures of a broker's row."""
    from kerolox.protocol.bodies.stats import TimerMetrics
    from kerolox.protocol.codes import RequestCode, ResponseCode

    info = await admin.runtime_info(address)
    # A broker without a timer answers with an error.
    answer = await admin.ask(address, RequestCode.GET_TIMER_METRICS, ok=(0, ResponseCode.SYSTEM_ERROR, 3))
    topics = TimerMetrics.decode(answer.body).timing_count if answer.code == 0 else {}
    due_within = {  # Apache's brokers do not report it
        key.removeprefix(_DUE): int(value)
        for key, value in sorted(info.items(), key=lambda item: (len(item[0]), item[0]))
        if key.startswith(_DUE)
    }
    return (
        int(info.get("timerCongestNum", 0)),
        int(info.get("timerOffsetBehind", 0)),
        int(info.get("timerReadBehind", 0)),
        due_within,
        {topic: metric.count for topic, metric in topics.items() if metric.count},
    )


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
