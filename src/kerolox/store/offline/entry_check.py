"""Check of a DLedger log's index against its entries. Changes nothing."""

from __future__ import annotations

import os

from kerolox.protocol.ledger_scan import UNIT_BYTES, Unit, decode_unit
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import OffsetOutOfRange
from kerolox.store.log.ledger_index import INDEX_FILE_BYTES, first_entry, heads
from kerolox.store.offline.layout import Finding, Layout, OnlyReading, is_segment_name, open_run


def check_entry_index(
    layout: Layout,
    files: OnlyReading,
    log: Segments,
    end: int,
    found: list[Finding],
    *,
    crashed: bool,
) -> None:
    """Compare every unit with its entry. After a crash those of the last entries may be missing."""
    first = first_entry(log, end)
    if first is None:
        return
    path = layout.entry_index_path
    sizes = {files.size(os.path.join(path, name)) for name in files.list_dir(path) if is_segment_name(name)}
    size = sizes.pop() if len(sizes) == 1 else INDEX_FILE_BYTES
    index = open_run(files, OpenFiles(files), [path], size, found)
    for units in heads(log, first.pos, end):
        unlike = _first_unlike(index, units)
        if unlike is not None:
            found.append(
                Finding(
                    "entry index",
                    path,
                    f"has no valid unit for entry {unlike.index}, which is at {unlike.pos} of the log",
                    "the next start rewrites it from there on",
                    unlike.index,
                    note=crashed,
                )
            )
            return


def _first_unlike(index: Segments, units: list[Unit]) -> Unit | None:
    number = 0
    while number < len(units):
        at = units[number].index * UNIT_BYTES
        size = min(index.readable(at), (len(units) - number) * UNIT_BYTES)
        try:
            data = index.read(at, size) if size else b""
        except OffsetOutOfRange:
            data = b""
        if not data:
            return units[number]
        for offset in range(0, len(data), UNIT_BYTES):
            if decode_unit(data, offset) != units[number]:
                return units[number]
            number += 1
    return None
