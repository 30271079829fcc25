"""Duplicate messages, found by hashes of their unique keys.

For its part of the log each task writes the unique keys, sorted by their hashes, and the hashes in a second
file. When all parts are done, one task per range of hashes looks for hashes with two places; only the keys
of these are read. There are hardly any, so the comparison takes 16 bytes a message, in NumPy. Spark's own
join of the keys took four times as long as the rest of an audit, mostly to start its SQL engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kerolox.pipeline.audit.finding_kinds import TableRow

SAME = ("topic", "msg_id", "reconsume_times", "copy_of")  # columns that identify a message
SHARE_BYTES = 2 << 30  # of log per task, whose hashes take a few hundred megabytes at most
PLACES_MAX = 20  # places reported of one duplicate message
_ROW_GROUP_ROWS = 16_384
_CHUNK = 200_000  # hashes whose keys are read at once
_NUMBER = np.dtype([("number", np.uint64), ("place", np.uint64)])
_FOLDERS = ("keys", "numbers")

Hashes = npt.NDArray[np.uint64]


def _odd(count: int) -> Hashes:
    return np.random.default_rng(1).integers(0, 1 << 63, count, np.uint64) * np.uint64(2) + np.uint64(1)


_FACTORS = _odd(6)
_POWERS = np.cumprod(np.repeat(_FACTORS[:1], 1 << 16))  # the longest text in a record


def numbers_of(texts: pa.Array) -> Hashes:
    """Return a hash of each text; 0 for null and for an empty text."""
    if texts.null_count == len(texts):
        return np.zeros(len(texts), np.uint64)
    texts = pc.fill_null(texts, "")
    _, edges, data = texts.buffers()
    offsets = np.frombuffer(edges, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    sums = np.zeros(len(texts), np.uint64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    filled = np.flatnonzero(lengths)
    if len(filled):
        letters = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64)
        at = np.arange(len(letters)) - np.repeat(starts - offsets[0], lengths)
        letters *= _POWERS[at]
        sums[filled] = np.add.reduceat(letters, starts[filled] - offsets[0])
    return sums


def mixed(*columns: npt.NDArray[Any]) -> Hashes:
    """Return one hash of several number columns, spread evenly over 64 bits."""
    whole = np.zeros(len(columns[0]), np.uint64)
    for column, factor in zip(columns, _FACTORS, strict=False):
        whole = whole * factor + column.astype(np.uint64)
        whole ^= whole >> np.uint64(32)
        whole *= factor
        whole ^= whole >> np.uint64(29)
    return whole


class KeyFiles:
    """The two files (keys and hashes) of one part of a log."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._tables: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)

    def write(self) -> None:
        if not self._tables:
            return
        table = pa.concat_tables(self._tables).combine_chunks()
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        found = np.empty(len(table), _NUMBER)
        found["number"] = mixed(
            *(numbers_of(columns[name]) for name in ("topic", "msg_id", "copy_of")),
            np.asarray(columns["reconsume_times"]),
        )
        found["place"] = mixed(np.asarray(columns["store_host"]), np.asarray(columns["physical_offset"]))
        order = np.argsort(found["number"], kind="stable")
        for folder in _FOLDERS:
            (self._directory / folder).mkdir(parents=True, exist_ok=True)
        keys, numbers = self._path("keys", "parquet"), self._path("numbers", "bin")
        # Renamed only when complete: a retried task replaces the files of the failed try.
        pq.write_table(
            table.take(pa.array(order)), f"{keys}.part", row_group_size=_ROW_GROUP_ROWS, compression="lz4",
            use_dictionary=["topic"], write_statistics=False,
        )  # fmt: skip
        found[order].tofile(f"{numbers}.part")
        for path in (keys, numbers):
            os.replace(f"{path}.part", path)

    def _path(self, folder: str, kind: str) -> Path:
        return self._directory / folder / f"{self._name}.{kind}"


def shares(log_bytes: int) -> list[tuple[int, int]]:
    """Divide the range of hashes into shares; return the least and the greatest hash of each."""
    count = max(1, -(-log_bytes // SHARE_BYTES))
    edges = [number * (1 << 64) // count for number in range(count + 1)]
    return [(low, high - 1) for low, high in pairwise(edges)]


def find_repeated(directory: str, rows_max: int, share: tuple[int, int]) -> tuple[list[TableRow], int]:
    """Return duplicate messages whose hashes are in this share, and their number.

    A replica's copy is the same record at the same place of the same broker, and so no duplicate. Nor is a
    copy made on purpose by ``kerolox dlq resend`` or a replay.
    """
    parts: list[tuple[Path, int, npt.NDArray[np.void]]] = []
    for path in sorted((Path(directory) / "numbers").glob("*.bin")):
        whole = np.memmap(path, _NUMBER, "r")
        low = int(np.searchsorted(whole["number"], np.uint64(share[0]), "left"))
        high = int(np.searchsorted(whole["number"], np.uint64(share[1]), "right"))
        parts.append((path, low, np.array(whole[low:high])))
    repeated = _repeated([found for _, _, found in parts])
    rows: list[TableRow] = []
    more = 0
    for at in range(0, len(repeated), _CHUNK):
        chunk = repeated[at : at + _CHUNK]
        if len(rows) >= rows_max:
            more += len(chunk)
        else:
            rows += _same_messages(_keys(parts, chunk))
    return rows[:rows_max], len(rows) + more


def _repeated(parts: Sequence[npt.NDArray[np.void]]) -> Hashes:
    """Return the hashes that occur at more than one place."""
    if not parts:
        return np.empty(0, np.uint64)
    number = np.concatenate([part["number"] for part in parts])
    place = np.concatenate([part["place"] for part in parts])
    order = np.argsort(number, kind="stable")  # a merge, because each part is sorted
    number, place = number[order], place[order]
    again = (number[1:] == number[:-1]) & (place[1:] != place[:-1])
    return np.unique(number[1:][again])


def _keys(parts: Sequence[tuple[Path, int, npt.NDArray[np.void]]], wanted: Hashes) -> pa.Table:
    """Return the keys with these hashes."""
    found = []
    for path, low, part in parts:
        numbers = part["number"]
        near = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
        rows = np.flatnonzero(wanted[near] == numbers) + low
        if len(rows):
            found.append(_rows_at(path.parent.parent / "keys" / f"{path.stem}.parquet", rows))
    return pa.concat_tables(found)


def _rows_at(path: Path, rows: npt.NDArray[np.int64]) -> pa.Table:
    groups, inverse = np.unique(rows // _ROW_GROUP_ROWS, return_inverse=True)
    with pq.ParquetFile(path) as file:
        table = file.read_row_groups(groups.tolist())
    return table.take(pa.array(inverse.reshape(-1) * _ROW_GROUP_ROWS + rows % _ROW_GROUP_ROWS))


def _same_messages(keys: pa.Table) -> list[TableRow]:
    """Of keys with equal hashes return the equal ones at more than one place, the oldest place first."""
    by = [(name, "ascending") for name in (*SAME, "stored_ms", "store", "physical_offset")]
    found: list[TableRow] = []
    for same in _runs(keys.sort_by(by).to_pylist()):
        copies = {(row["store_host"], row["physical_offset"]) for row in same}
        if len(copies) > 1:
            found.append({**same[0], "copies": len(copies), "places": same[:PLACES_MAX]})
    return found


def _runs(rows: Sequence[TableRow]) -> Iterator[list[TableRow]]:
    """Yield the rows of each message together. The rows are sorted."""
    run: list[TableRow] = []
    for row in rows:
        if run and any(run[0][name] != row[name] for name in SAME):
            yield run
            run = []
        run.append(row)
    if run:
        yield run
