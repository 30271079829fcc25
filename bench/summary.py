"""Results that docs/PERFORMANCE.md begins with: a table, a picture, the loads where Apache is faster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.results import Result, Table, ratio
from kerolox.pipeline.charts import WIDTH, bars

LEFT = 320  # of the bars: labels are before it
BEHIND = 0.95  # ratios below it are listed; above it they are noise


class Line(NamedTuple):
    """One result of the table, and the cells of the full results that it quotes."""

    what: str
    benchmark: str
    table: str  # beginning of the title
    row: str
    ours: str = "kerolox"
    theirs: str = "Apache"
    times: str = ""  # column of the ratio; empty: the ratio of both figures
    their_table: str = ""  # if it is another one


OURS, APACHES = "What access control costs kerolox's", "What access control costs Apache's"
ONE, PULLS = (
    "sends of 128 B, 64 in flight on one connection",
    "pulls of 32 of 128 B, 16 in flight on one connection",
)
OPEN = ("open, messages/s", "open, messages/s", "", APACHES)
RATES = ("kerolox, messages/s", "Apache, messages/s")
START = "Memory and start of the broker"
FACTOR = "ratio (Apache / kerolox)"
LINES = (
    Line("sends of 128 B, 64 in flight, /s", "access", OURS, ONE, *OPEN),
    Line("the same, signed and with rights, /s", "access", "Both", ONE, *RATES, "ratio of rates"),
    Line("messages of 128 B, pulled 32 at a time, /s", "access", OURS, PULLS, *OPEN),
    Line(
        "sends of 128 B, two replicas, 64 threads, /s", "replication", "Every message", "64 threads",
        *RATES, "ratio",
    ),
    Line(
        "copying to a follower, MB/s", "replication", "A follower that was away", "copied, MB/s",
        times="ratio",
    ),
    Line(
        "pause after kill -9 of the leader, p50, ms", "failover", "How long", "kerolox's client",
        "kerolox, p50 ms", "Apache, p50 ms", "ratio",
    ),
    Line(
        "delayed to any time, delivered, /s", "later", "Delayed", "any time, as many as possible",
        "kerolox, delivered/s", "Apache, delivered/s", "ratio",
    ),
    Line(
        "transactions, 64 threads, /s", "later", "Transactions", "transactions, 64 threads",
        "kerolox, /s", "Apache, /s", "ratio",
    ),
    Line(
        "route queries, 64 connections, /s", "nameserver", "Route queries per second, and",
        "64 connections, 16 in flight each", "kerolox, per s", "Apache, per s", "ratio of rates",
    ),
    Line(
        "start to the first stored message, s", "broker", START, "start to first message stored, s",
        times=FACTOR,
    ),
    Line("memory of a started broker, MiB", "broker", START, "memory after that, RSS MiB", times=FACTOR),
)  # fmt: skip
SPARK = re.compile(r"^([\w ]+), 128 B: rows per CPU second of Spark to Kafka's$")


class Shown(NamedTuple):
    """A line with its figures."""

    what: str
    ours: str
    theirs: str
    times: str  # above 1: in favour of kerolox


def figure(text: str) -> float:
    return float(text.replace(",", "").rstrip("x"))


def cell(table: Table, row: str, column: str) -> str:
    (found,) = (each for each in table.rows if each[0] == row)
    return found[table.columns.index(column)]


def table_of(result: Result, title: str) -> Table:
    (found,) = (table for table in result.tables if table.title.startswith(title))
    return found


def shown(results: Mapping[str, Result]) -> Iterator[Shown]:
    for line in LINES:
        result = results[line.benchmark]
        ours = cell(table_of(result, line.table), line.row, line.ours)
        theirs = cell(table_of(result, line.their_table or line.table), line.row, line.theirs)
        if line.times:
            times = cell(table_of(result, line.table), line.row, line.times)
        else:
            times = ratio(figure(ours) / figure(theirs))
        yield Shown(line.what, ours, theirs, times)


def table(results: Mapping[str, Result]) -> str:
    rows = [[line.what, line.ours, line.theirs, line.times] for line in shown(results)]
    lines = ["| | kerolox | Apache RocketMQ | times better |", "|---|--:|--:|--:|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def beside_kafka(results: Mapping[str, Result]) -> str:
    """Return the ratios to Spark's connector for Kafka, as a list in a sentence."""
    aims = table_of(results["spark"], "Aims")
    found = [(load[1], row[2]) for row in aims.rows if (load := SPARK.match(row[0]))]
    return ", ".join(f"{load} {times}" for load, times in found)


def behind(results: Mapping[str, Result]) -> list[tuple[str, str, str]]:
    """Return benchmark, load and ratio of every comparison with Apache's programs that Apache wins."""
    found = []
    for result in results.values():
        for one in result.tables:
            if not any(column.startswith("Apache") for column in one.columns):
                continue
            for at, column in enumerate(one.columns):
                if column.startswith("ratio"):
                    found += [
                        (result.title, f"{one.title}: {row[0]}{_compared(one.columns, at)}", row[at])
                        for row in one.rows
                        if row[at] not in ("", "-") and figure(row[at]) < BEHIND
                    ]
    return found


def _compared(columns: list[str], at: int) -> str:
    """Return what the ratio in this column compares, if its row does not say it."""
    if columns[at] == "ratio of rates":
        return ", messages/s"
    ours = [column for column in columns[:at] if column.startswith("kerolox")]
    return ours[-1].removeprefix("kerolox")


def picture(results: Mapping[str, Result]) -> str:
    """Return the ratios of the table as a picture in SVG."""
    lines = list(shown(results))
    chart = bars(
        ["Apache RocketMQ", *(line.what for line in lines)],
        [1.0, *(figure(line.times) for line in lines)],
        "Times better than Apache RocketMQ",
        lambda times: f"{times:.1f}x",
        left=LEFT,
    )
    start, _, shapes = chart.partition(">")
    found = re.search(r'viewBox="0 0 \d+ (\d+)"', start)
    assert found is not None
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{found[1]}"{start[4:]}>'
        f'<style>{STYLE}</style><rect class="paper" width="{WIDTH}" height="{found[1]}"/>{shapes}\n'
    )


STYLE = (
    ".paper{fill:#fff}.f0{fill:#0072b2}.axis{font:12px system-ui,sans-serif;fill:#1d2125}"
    "rect.f0:nth-of-type(2){fill:#9aa3ad}"
)
