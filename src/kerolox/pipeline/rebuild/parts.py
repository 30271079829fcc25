"""A log cut into parts that tasks share, and what they found put in line again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from kerolox.pipeline.rebuild.extract import NOT_FOUND, LogPart
from kerolox.store.errors import StoreError


class PartFound(Protocol):
    """What a task says of its part."""

    first: int  # where its first record begins
    end: int  # just behind its last
    records: int
    stop: str  # what is there instead of a record, where the log ends


Found = TypeVar("Found", bound=PartFound)


def parts_of(starts: Sequence[int], file_bytes: int, low: int, high: int, size: int) -> list[LogPart]:
    """The log from ``low`` to ``high`` cut into parts, each within a file. ``starts``: where files begin."""
    parts: list[LogPart] = []
    for start, following in zip(starts, [*starts[1:], high], strict=True):
        begin, end = max(start, low), min(following, start + file_bytes, high)
        parts += [
            LogPart(at, min(at + size, end), at if at in (start, low) else None)
            for at in range(begin, end, size)
        ]
    return parts


def shares_of(parts: Sequence[LogPart], size_bytes: int) -> list[list[LogPart]]:
    """Parts of small files together, so that each task is worth starting."""
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
    """What was found in each part up to where the log ends, and how many parts had to be read again.

    One is read again that began with bytes that look like a record and are none, or found none: the one
    before it knows where it begins.
    """
    found: list[Found] = []
    expected: int | None = None
    read_again = 0
    for part in parts:
        each = known[part.start]
        if found and found[-1].stop:
            if each.records:
                raise StoreError(
                    f"the log of {log} changed while it was read: records at {each.first}, behind its end "
                    f"at {found[-1].end}. Is a broker at work on it? Stop it, and begin again in a new "
                    "directory."
                )
            continue
        if expected is not None and each.first != expected:
            read_again += each.first != NOT_FOUND
            each = again(LogPart(part.start, part.end, expected))
        expected = each.end
        found.append(each)
    return found, read_again
