"""Rates, sizes and latencies, from the small tables of counts that tasks wrote."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kerolox.pipeline.audit.finding_kinds import TableRow

ADDED_ROWS = 1_000_000  # rows added up at once
SHARES = (0.5, 0.9, 0.99, 0.999)


def added(tables: Iterable[pa.Table], by: Sequence[str]) -> pa.Table:
    """Add up tables of amounts by these columns, in little more memory than the result."""
    whole: pa.Table | None = None
    waiting: list[pa.Table] = []
    rows = 0

    def add() -> pa.Table:
        table = pa.concat_tables(waiting if whole is None else [whole, *waiting])
        amounts = [name for name in table.column_names if name not in by]
        sums = table.group_by(list(by)).aggregate([(name, "sum") for name in amounts])
        return sums.rename_columns([*by, *amounts]).select(table.column_names).cast(table.schema)

    for table in tables:
        waiting.append(table)
        rows += len(table)
        if rows >= ADDED_ROWS:
            whole, waiting, rows = add(), [], 0
    return add() if waiting or whole is None else whole


def sums(volume: pa.Table, *by: str) -> list[TableRow]:
    """Return messages, bytes and busiest minute for each value of these columns, the largest first."""
    if not len(volume):
        return []
    amounts = ("messages", "bytes", "body_bytes")
    minutes = volume.group_by([*by, "minute"]).aggregate([(name, "sum") for name in amounts])
    minutes = minutes.sort_by([("messages_sum", "descending"), ("minute", "ascending")])
    wanted = [(f"{name}_sum", "sum") for name in amounts]
    wanted += [("minute", "min"), ("minute", "max"), ("messages_sum", "max"), ("minute", "first")]
    found = minutes.group_by(list(by), use_threads=False).aggregate(wanted)
    names = [*by, *amounts, "first_minute", "last_minute", "peak_messages", "peak_minute"]
    rows: list[TableRow] = found.rename_columns(names).to_pylist()
    return sorted(rows, key=lambda row: (-row["messages"], *(row[name] for name in by)))


def by_minute(volume: pa.Table, topics: Sequence[str]) -> list[TableRow]:
    """Return messages and bytes per minute of these topics; all others together have an empty name."""
    if not len(volume):
        return []
    named = pc.is_in(volume["topic"], pa.array(topics, pa.string()))
    topic = pc.if_else(named, volume["topic"], "")
    table = volume.set_column(volume.schema.get_field_index("topic"), "topic", topic)
    found = table.group_by(["topic", "minute"]).aggregate([("messages", "sum"), ("bytes", "sum")])
    rows: list[TableRow] = found.rename_columns(["topic", "minute", "messages", "bytes"]).to_pylist()
    return sorted(rows, key=lambda row: (row["minute"], row["topic"]))


def spread(counts: pa.Table, value: str, by: str) -> list[TableRow]:
    """Return exact percentiles (nearest rank), minimum, maximum and mean of ``value`` for each ``by``."""
    if not len(counts):
        return []
    table = counts.group_by([by, value]).aggregate([("messages", "sum")])
    table = table.sort_by([(by, "ascending"), (value, "ascending")]).combine_chunks()
    codes = np.asarray(pc.dictionary_encode(table[by]).combine_chunks().indices)
    values, amounts = np.asarray(table[value]), np.asarray(table["messages_sum"])
    cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    rows = []
    for low, high in pairwise(cuts):
        these, many = values[low:high], amounts[low:high]
        reached = np.cumsum(many)
        total = int(reached[-1])
        row = {by: table[by][low].as_py(), "messages": total, "least": int(these[0])}
        for share in SHARES:
            row[share_name(share)] = int(these[np.searchsorted(reached, math.ceil(share * total - 1e-9))])
        row |= {
            "most": int(these[-1]),
            "mean": float((these * many).sum() / total),
            "negative": int(many[these < 0].sum()),
        }
        rows.append(row)
    return rows


def share_name(share: float) -> str:
    return f"p{share * 100:g}".replace(".", "_")


def histogram(counts: pa.Table, value: str) -> list[TableRow]:
    """Count messages with values up to 1, 2, 4, 8 and so on; ``up_to`` 0: values of 0 or less."""
    found: Counter[int] = Counter()
    table = counts.group_by(value).aggregate([("messages", "sum")])
    for each, count in zip(table[value].to_pylist(), table["messages_sum"].to_pylist(), strict=True):
        found[0 if each <= 0 else 1 << (each - 1).bit_length()] += count
    if not found:
        return []
    high = max(found)
    edges = [0] if 0 in found else []
    edge = min((each for each in found if each), default=0)
    while 0 < edge <= high:
        edges.append(edge)
        edge *= 2
    return [{"up_to": edge, "messages": found[edge]} for edge in edges]


def hot_spots(retries: Iterable[Mapping[str, Any]]) -> list[TableRow]:
    """Return retries and dead letters by group and topic, with the busiest minute and most frequent tag."""
    by: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in retries:
        by[row["kind"], row["group"], row["topic"]].append(row)
    found = []
    for (kind, group, topic), rows in by.items():
        minutes: Counter[int] = Counter()
        tags: Counter[str] = Counter()
        for row in rows:
            minutes[row["minute"]] += row["messages"]
            tags[row["tag"]] += row["messages"]
        peak = min(minutes, key=lambda minute: (-minutes[minute], minute))
        first = min(rows, key=lambda row: (row["minute"], row["store"], row["physical_offset"]))
        found.append({
            "kind": kind, "group": group, "topic": topic, "messages": minutes.total(),
            "reconsume_times_max": max(row["reconsume_times_max"] for row in rows),
            "first_minute": min(minutes), "last_minute": max(minutes), "peak_minute": peak,
            "peak_messages": minutes[peak], "tag": min(tags, key=lambda tag: (-tags[tag], tag)),
            "first": {"store": first["store"], "physical_offset": first["physical_offset"]},
        })  # fmt: skip
    return sorted(found, key=lambda row: (-row["messages"], row["kind"], row["group"], row["topic"]))


def resent(dead: pa.Table, copied: pa.Table) -> dict[tuple[str, str], int]:
    """Return, by group and topic, the number of dead letters that were sent again."""
    if not len(copied):
        return {}
    place = ["store_host", "physical_offset"]
    found = dead.join(copied.group_by(place).aggregate([]), place, join_type="left semi")
    counts = found.group_by(["group", "topic"]).aggregate([("physical_offset", "count")]).to_pylist()
    return {(row["group"], row["topic"]): row["physical_offset_count"] for row in counts}
