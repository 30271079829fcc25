"""A log cut into parts for tasks, and the order and check of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from kerolox.pipeline.rebuild.extract import NOT_FOUND, LogPart
from kerolox.store.errors import StoreError


class PartFound(Protocol):
    """Result of a task for its part."""

    first: int  # begin of the first record
    end: int  # end of the last record
    records: int
    stop: str  # description of the bytes at the end of the log


Found = TypeVar("Found", bound=PartFound)


def parts_of(starts: Sequence[int], file_bytes: int, low: int, high: int, size: int) -> list[LogPart]:
    """Cut the log from ``low`` to ``high`` into parts within files. ``starts``: offsets of the files."""
    parts: list[LogPart] = []
    for start, following in zip(starts, [*starts[1:], high], strict=True):
        begin, end = max(start, low), min(following, start + file_bytes, high)
        parts += [
            LogPart(at, min(at + size, end), at if at in (start, low) else None)
            for at in range(begin, end, size)
        ]
    return parts


def shares_of(parts: Sequence[LogPart], size_bytes: int) -> list[list[LogPart]]:
    """Group parts of small files, so that each task has enough work to be worth starting."""
    shares: list[list[LogPart]] = []
    size = size_bytes
    for part in parts:
        if size >= size_bytes // 2:
            shares.append([])
            size = 0
        shares[-1].append(part)
        size += part.end - part.start
    return shares


def in_line(
    parts: Sequence[LogPart], known: Mapping[int, Found], again: Callable[[LogPart], Found], log: str
) -> tuple[list[Found], int]:
    """Return the results up to the end of the log, and the number of parts read again.

    A part is read again if it started at bytes that only look like a record, or found none: the end of the
    part before it is the right begin.
    """
    found: list[Found] = []
    expected: int | None = None
    read_again = 0
    for part in parts:
        each = known[part.start]
        if found and found[-1].stop:
            if each.records:
                raise StoreError(
                    f"the log of {log} changed while it was read: records at {each.first}, after its end "
                    f"at {found[-1].end}. Is a broker running on it? Stop it, and start again in a new "
                    "directory."
                )
            continue
        if expected is not None and each.first != expected:
            read_again += each.first != NOT_FOUND
            each = again(LogPart(part.start, part.end, expected))
        expected = each.end
        found.append(each)
    return found, read_again
