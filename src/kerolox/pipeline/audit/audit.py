"""Audit of whole stores by tasks: lost, duplicate, damaged and misplaced messages.

Tasks read parts of the commit logs (``checks.py``) and write small files, which are compared and added up
(``duplicates.py``, ``traffic.py``, ``open_transactions.py``). Problems become findings (``findings.py``), a
page for people (``report.py``) and tables for programs. An audit only reads, so brokers may use the stores
meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.audit import duplicates, traffic
from kerolox.pipeline.audit.checks import TABLES, PartAudit
from kerolox.pipeline.audit.finding_kinds import KINDS, Findings, TableRow
from kerolox.pipeline.audit.findings import FindingMaker, Where
from kerolox.pipeline.audit.open_transactions import has_halves, open_halves
from kerolox.pipeline.audit.plan import LogSpan, StorePlan, check_topics, plan_stores, spans
from kerolox.pipeline.audit.queues import Cover, Lonely, lonely_entries
from kerolox.pipeline.audit.report_place import FORM, REPORT, place_of
from kerolox.pipeline.lake.storage import open_storage
from kerolox.pipeline.lake.store_files import Address
from kerolox.pipeline.runner import Runner, run_watched

ROWS_MAX = 1_000_000  # rows of one kind of finding in its table
TOPICS_SHOWN = 8
_QUEUE_TASKS = 8
_QUEUES_ALONE = 64  # up to this many queues are checked by the driver itself
OnProgress = Callable[[int, int], None]


class Scratch(NamedTuple):
    """Runner of the tasks of an audit, and the folder of their files."""

    runner: Runner
    directory: Path


class Audit(msgspec.Struct):
    """Scope and results of an audit: all numbers of the page."""

    stores: list[StorePlan]
    findings: Findings
    made_ms: int
    topics_wanted: list[str] = []
    since_ms: int | None = None
    until_ms: int | None = None
    seconds: float = 0.0
    messages: int = 0
    bytes_read: int = 0
    bodies: int = 0  # bodies whose checksum was verified
    entries: int = 0  # correct queue entries
    queues: int = 0
    halves: int = 0  # half messages
    halves_young: int = 0  # open half messages sent less than a minute ago
    under_way: int = 0  # messages in the log that are not yet in their queue
    first_ms: int = 0
    last_ms: int = 0
    topics: list[TableRow] = []
    tags: list[TableRow] = []
    minutes: list[TableRow] = []
    latency: list[TableRow] = []
    latency_minutes: list[TableRow] = []
    latency_steps: list[TableRow] = []
    sizes: list[TableRow] = []
    size_steps: list[TableRow] = []
    volume: Any = None  # a pa.Table
    runner: str = ""  # name of the runner of the tasks

    @property
    def problems(self) -> int:
        return self.findings.problem_count

    @property
    def headline(self) -> str:
        count = (
            f"{self.problems:,} problem{'s' if self.problems != 1 else ''}"
            if self.problems
            else "No problems"
        )
        return f"{count} in {self.messages:,} message{'s' if self.messages != 1 else ''}"


def audit(
    runner: Runner,
    roots: Sequence[Address],
    to: Address,
    *,
    topics: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
    progress: OnProgress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Audit:
    """Audit the stores and write the report, replacing an older one.

    Stores and report are in folders or at addresses. For an address with options pass
    ``open_storage(address, options)``.
    """
    began_s = clock.monotonic_s()
    place = place_of(open_storage(to))
    _check_times(since_ms, until_ms)
    stores = plan_stores(roots, since_ms=since_ms, until_ms=until_ms)
    check_topics(stores, topics)
    place.check()
    addresses = {each.driver: each.address for each in map(open_storage, roots) if each.driver is not None}
    for driver, address in addresses.items():
        runner.check_driver(address, *driver)
    with place.work(clock.wall_ms()) as work:
        made = Audit(
            stores,
            Findings(ROWS_MAX),
            clock.wall_ms(),
            sorted(topics),
            since_ms,
            until_ms,
            runner=runner.name,
        )
        scratch = Scratch(runner, work)
        summary = _go_through(scratch, stores, topics, progress)
        _find(scratch, made, summary, topics)
        _count(scratch, made)
        made.seconds = clock.monotonic_s() - began_s
        _write(made, work / "report")
        place.put(work / "report")
    return made


def check_request(
    roots: Sequence[Address],
    to: Address,
    *,
    topics: Sequence[str] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> None:
    """Raise an error if a store or topic does not exist, or if the report would overwrite other files."""
    check_topics(plan_stores(roots), topics)
    _check_times(since_ms, until_ms)
    place_of(open_storage(to)).check()


def _check_times(since_ms: int | None, until_ms: int | None) -> None:
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise OptionError("--until", until_ms, f"a time later than --since, which is {since_ms}")


# --- tasks -------------------------------------------------------------------------------------------


def _examine(
    stores: Sequence[StorePlan], directory: str, topics: Collection[str], span: LogSpan
) -> list[TableRow]:
    if not os.path.isdir(directory):
        raise KeroloxError(
            f"{directory} does not exist on {platform.node()}, so a task cannot store its results. On a "
            "cluster, give a --to that all machines see under the same path, such as a mount. For a report "
            "at an address, set TMPDIR to such a folder"
        )
    rows: list[TableRow] = PartAudit(stores[span.store], span, Path(directory), topics).run().to_pylist()
    (Path(directory) / f"done-{span.store}-{span.start}-{span.end}").touch()
    return rows


def _go_through(
    scratch: Scratch,
    stores: Sequence[StorePlan],
    topics: Sequence[str],
    progress: OnProgress | None,
) -> list[TableRow]:
    parts = [span for store in stores for span in spans(store)]
    total = sum(span.end - span.start for span in parts)

    def watch() -> None:
        done = [name.name.split("-") for name in scratch.directory.glob("done-*")]
        assert progress is not None
        progress(sum(int(words[3]) - int(words[2]) for words in done), total)

    work = partial(_examine, stores, str(scratch.directory), frozenset(topics))
    found = run_watched(scratch.runner, work, parts, watch if progress is not None else None)
    return [row for rows in found for row in rows]


def _look_at_queues(
    stores: Sequence[StorePlan], ends: Sequence[int], some: Sequence[tuple[Where, Cover | None]]
) -> dict[Where, list[Lonely]]:
    found = {
        where: lonely_entries(stores[where[0]], where[1:], cover, ends[where[0]]) for where, cover in some
    }
    return {where: entries for where, entries in found.items() if entries}


def _lonely(
    scratch: Scratch, made: Audit, covers: dict[Where, Cover], summary: Sequence[TableRow]
) -> dict[Where, list[Lonely]]:
    wanted = set(made.topics_wanted)
    keys = [
        (store.number, topic, queue_id)
        for store in made.stores
        for topic, queue_id in store.queues
        if not wanted or topic in wanted
    ]
    made.queues = len(keys)
    ends = [
        max((row["end"] for row in summary if row["store"] == store.number), default=store.low)
        for store in made.stores
    ]
    share = -(-len(keys) // _QUEUE_TASKS)
    some = [
        [(key, covers.get(key)) for key in keys[at : at + share]] for at in range(0, len(keys), share or 1)
    ]
    found: dict[Where, list[Lonely]] = {}
    look = partial(_look_at_queues, made.stores, ends)
    alone = len(keys) <= _QUEUES_ALONE
    for each in map(look, some) if alone else scratch.runner.run(look, some):
        found |= each
    return found


def _find(scratch: Scratch, made: Audit, summary: list[TableRow], topics: Sequence[str]) -> None:
    made.messages = sum(row["messages"] for row in summary)
    made.bytes_read = sum(row["end"] - row["start"] for row in summary)
    made.bodies = sum(row["bodies"] for row in summary)
    made.entries = sum(row["entries"] for row in summary)
    made.halves = sum(row["halves"] for row in summary)
    made.first_ms = min((row["first_ms"] for row in summary if row["first_ms"]), default=0)
    made.last_ms = max((row["last_ms"] for row in summary), default=0)
    maker = FindingMaker(made.stores, made.findings)
    maker.log(_small(scratch, "faults").to_pylist(), summary)
    covers = maker.covers(_small(scratch, "runs").to_pylist())
    made.under_way = maker.entries(_small(scratch, "wrong_entries").to_pylist(), covers)
    maker.gaps(covers, _lonely(scratch, made, covers, summary))
    maker.copies(_small(scratch, "copies").to_pylist())
    maker.duplicates(*_duplicates(scratch, made.bytes_read))
    made.halves_young = maker.halves(_open_halves(scratch, made.stores, topics), made.made_ms)


def _open_halves(scratch: Scratch, stores: Sequence[StorePlan], topics: Collection[str]) -> list[TableRow]:
    """Return half messages of open transactions. In most audits there are none to look at."""
    some = [store for store in stores if has_halves(scratch.directory, store)]
    work = partial(open_halves, str(scratch.directory), frozenset(topics), ROWS_MAX)
    rows = [row for found in scratch.runner.run(work, some) for row in found]
    return sorted(rows, key=lambda row: row["stored_ms"])[:ROWS_MAX]


def _small(scratch: Scratch, name: str) -> pa.Table:
    """Read a table that is small whatever the size of the store."""
    return pa.concat_tables(_tables(scratch, name))


def _tables(scratch: Scratch, name: str) -> Iterator[pa.Table]:
    """Yield an empty table, then the table that each task wrote."""
    yield TABLES[name].empty_table()
    for path in sorted((scratch.directory / name).glob("*.parquet")):
        yield pq.read_table(path, schema=TABLES[name], partitioning=None)


def _duplicates(scratch: Scratch, log_bytes: int) -> tuple[list[TableRow], int]:
    """Return the messages that are in a topic more than once, and their number."""
    look = partial(duplicates.find_repeated, str(scratch.directory), ROWS_MAX)
    shares = duplicates.shares(log_bytes)
    found = [look(shares[0])] if len(shares) == 1 else scratch.runner.run(look, shares)
    rows = [row for some, _ in found for row in some]
    rows.sort(key=lambda row: (row["topic"], row["places"][0]["stored_ms"], row["msg_id"]))
    return rows[:ROWS_MAX], sum(count for _, count in found)


def _volume(scratch: Scratch) -> pa.Table:
    """Return messages and bytes by store, topic, tag and minute."""
    by = ["minute", "store", "topic", "tag"]
    whole = traffic.added(_tables(scratch, "volume"), by)
    return whole.sort_by([(name, "ascending") for name in by])


def _count(scratch: Scratch, made: Audit) -> None:
    made.volume = _volume(scratch)
    made.topics = traffic.sums(made.volume, "topic")
    made.tags = traffic.sums(made.volume, "topic", "tag")
    made.minutes = traffic.by_minute(made.volume, [row["topic"] for row in made.topics[:TOPICS_SHOWN]])
    latency, sizes = _small(scratch, "latency"), _small(scratch, "sizes")
    made.latency = traffic.spread(latency, "latency_ms", "topic")
    made.latency_steps = traffic.histogram(latency, "latency_ms")
    made.latency_minutes = traffic.spread(_small(scratch, "latency_by_minute"), "latency_ms", "minute")
    made.sizes = traffic.spread(sizes, "body_bytes", "topic")
    made.size_steps = traffic.histogram(sizes, "body_bytes")
    maker = FindingMaker(made.stores, made.findings)
    maker.clocks(made.latency)
    totals = {row["topic"]: row["messages"] for row in made.topics}
    hot_spots = traffic.hot_spots(_small(scratch, "retries").to_pylist())
    maker.hot_spots(hot_spots, totals, traffic.resent(_small(scratch, "dead"), _small(scratch, "resent")))


# --- the report --------------------------------------------------------------------------------------


def document(made: Audit) -> TableRow:
    """Return the report as JSON values, for programs."""
    return {
        "form": FORM,
        "headline": made.headline,
        "problems": made.problems,
        "clean": not made.problems,
        "messages": made.messages,
        "stores": [
            {
                "broker": store.label,
                "path": store.root,
                "from": store.low,
                "to": store.high,
                "inUse": store.unsettled,
            }
            for store in made.stores
        ],
        "topicsWanted": made.topics_wanted,
        "sinceMs": made.since_ms,
        "untilMs": made.until_ms,
        "firstStoreTimestamp": made.first_ms,
        "lastStoreTimestamp": made.last_ms,
        "bytesRead": made.bytes_read,
        "checksums": made.bodies,
        "queueEntries": made.entries,
        "queues": made.queues,
        "halfMessages": made.halves,
        "halfMessagesJustSent": made.halves_young,
        "notYetInTheirQueue": made.under_way,
        "seconds": round(made.seconds, 3),
        "runner": made.runner,
        "findings": {
            kind.name: {
                "problems": made.findings.count(kind),
                "notes": len(made.findings.notes(kind)),
                "first": [_plain(row) for row in made.findings.rows[kind.name][:20]],
            }
            for kind in KINDS
        },
        "topics": made.topics,
        "latency": made.latency,
        "sizes": made.sizes,
    }


def _plain(row: TableRow) -> TableRow:
    return {
        name: value if isinstance(value, str | int | float | list | bool | None) else value.isoformat()
        for name, value in row.items()
    }


def _write(made: Audit, directory: Path) -> None:
    from kerolox.pipeline.audit.report import page

    tables = directory / "tables"
    tables.mkdir(parents=True)
    for kind in KINDS:
        pq.write_table(made.findings.table(kind), tables / f"{kind.name}.parquet", compression="zstd")
    pq.write_table(_labelled(made), tables / "volume.parquet", compression="zstd")
    for name, rows in (
        ("latency", made.latency),
        ("sizes", made.sizes),
        ("latency_by_minute", made.latency_minutes),
    ):
        pq.write_table(pa.Table.from_pylist(rows), tables / f"{name}.parquet", compression="zstd")
    (directory / "report.html").write_text(page(made), encoding="utf-8")
    text = json.dumps(document(made), ensure_ascii=False, indent=1)
    (directory / REPORT).write_text(text, encoding="utf-8")


def _labelled(made: Audit) -> pa.Table:
    """Return the rates with broker names and timestamps, so that the table needs no other table."""
    labels = pa.array([store.label for store in made.stores], pa.string())
    table = made.volume
    minute = pc.multiply(table["minute"], 60_000).cast(pa.timestamp("ms", tz="UTC"))
    return pa.table({
        "minute": minute, "broker": labels.take(table["store"].combine_chunks()), "topic": table["topic"],
        "tag": table["tag"], "messages": table["messages"], "bytes": table["bytes"],
        "body_bytes": table["body_bytes"],
    })  # fmt: skip
