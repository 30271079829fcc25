"""Open transactions of a store, from the files of half messages and of their ends that the tasks wrote.

There may be as many half messages as messages. So only the offsets of finished ones, 8 bytes each, and the
half messages that are open are held in memory; the files are read one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kerolox.pipeline.audit.checks import TABLES
from kerolox.pipeline.audit.finding_kinds import TableRow
from kerolox.pipeline.audit.plan import StorePlan

Mask = npt.NDArray[np.bool_]
_NUMBER = r"^[0-9]{1,18}$"


def has_halves(directory: Path, store: StorePlan) -> bool:
    """Return True if the store has half messages that its broker has not finished."""
    return any((directory / "halves").glob(f"{store.number:05d}-*.parquet"))


def open_halves(directory: str, topics: Collection[str], rows_max: int, store: StorePlan) -> list[TableRow]:
    """Return half messages of open transactions; of copies that the broker wrote, only the newest."""
    folder = Path(directory)
    offsets = (np.asarray(table["queue_offset"]) for table in _tables(folder, "ended_halves", store))
    ended = np.unique(np.concatenate([np.empty(0, np.int64), *offsets]))
    halves = pa.concat_tables(
        table.filter(pa.array(_is_open(table, ended, store))) for table in _tables(folder, "halves", store)
    )
    if topics:
        halves = halves.filter(pc.is_in(halves["real_topic"], pa.array(sorted(topics))))
    ids = halves["msg_id"].drop_null().unique()
    newest = pa.concat_tables(_copies(table, ids) for table in _tables(folder, "halves", store))
    newest = newest.group_by("msg_id").aggregate([("queue_offset", "max")])
    halves = halves.join(newest, "msg_id", join_type="left outer")
    older = pc.less(halves["queue_offset"], halves["queue_offset_max"])
    halves = halves.filter(pc.invert(pc.fill_null(older, False)))
    commits = pa.chunked_array(
        [pc.unique(table["msg_id"].filter(pc.is_in(table["msg_id"], ids)))
         for table in _tables(folder, "commits", store)],
        pa.string(),
    )  # fmt: skip
    halves = halves.filter(pc.invert(pc.is_in(halves["msg_id"], commits)))
    rows: list[TableRow] = halves.sort_by("stored_ms").slice(0, rows_max).to_pylist()
    return rows


def _tables(directory: Path, name: str, store: StorePlan) -> Iterator[pa.Table]:
    """Yield an empty table, then those that the tasks of a store wrote."""
    yield TABLES[name].empty_table()
    for path in sorted((directory / name).glob(f"{store.number:05d}-*.parquet")):
        yield pq.read_table(path, schema=TABLES[name], partitioning=None)


def _is_open(halves: pa.Table, ended: npt.NDArray[np.int64], store: StorePlan) -> Mask:
    """Return the half messages that no note ends."""
    is_ended = _among(np.asarray(halves["queue_offset"]), ended)
    if not store.is_ours:
        # Apache's broker keeps the first half message when it writes a copy, so a note on the first ends
        # the copy.
        is_ended |= _among(np.asarray(pc.fill_null(_number(halves["first_offset"]), -1)), ended)
    return ~is_ended


def _among(values: npt.NDArray[np.int64], ordered: npt.NDArray[np.int64]) -> Mask:
    at = np.searchsorted(ordered, values)
    found: Mask = np.append(ordered, -1)[at] == values
    return found & (values >= 0)


def _copies(halves: pa.Table, ids: pa.Array) -> pa.Table:
    """Return offsets and message ids of the copies that the broker wrote, of these messages."""
    checked = pc.fill_null(pc.greater(_number(halves["checks"]), 0), False)
    is_copy = pc.or_(pc.is_valid(halves["first_offset"]), checked)
    found = halves.filter(pc.and_(is_copy, pc.is_in(halves["msg_id"], ids)))
    return found.select(["msg_id", "queue_offset"])


def _number(texts: Any) -> Any:
    """Return properties as numbers; null for any other text."""
    is_number = pc.match_substring_regex(texts, _NUMBER)
    return pc.if_else(is_number, texts, pa.scalar(None, pa.string())).cast(pa.int64())
