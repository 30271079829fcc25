"""Messages that pass a filter on their properties, chosen from a queue without a step of Python for each."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from kerolox.compiled import compiled
from kerolox.protocol.record import RECORD_BYTES_MIN, property_values
from kerolox.store.queue.consume_queue import ENTRY, ENTRY_SIZE


class PropertyCondition(Protocol):
    """A filter on the values of some properties that remembers its answers."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Names of the properties."""

    @property
    def answers(self) -> dict[bytes, bool]:
        """By their values, as :func:`~kerolox.protocol.record.property_values` tells them."""

    @property
    def terms(self) -> int:
        """How many terms the condition has: the cost of one answer."""

    def __call__(self, data: bytes, at: int, size: int) -> bool: ...


class ScanEnd(IntEnum):
    """Why a property scan stops before an entry."""

    DONE = 0  # that was the last one, or the limits are reached
    ELSEWHERE = 1  # its message is not in the block
    UNKNOWN = 2  # no answer is remembered for it
    ODD = 3  # it is not a usual message


Scanned = tuple[int, int, int, int, int]  # number of the entry, messages, their bytes, left out, a Stop


def _scan_properties(
    entries: bytes,
    number: int,
    block: bytes,
    block_at: int,
    floor: int,
    keys: tuple[bytes, ...],
    answers: dict[bytes, bool],
    taken: list[bytes],
    count: int,
    count_max: int,
    size_bytes: int,
    bytes_max: int,
) -> Scanned:
    """Go through queue entries from ``number`` on, as far as it goes without asking anybody.

    ``block`` are the bytes of the log from ``block_at`` on; a message before ``floor`` is odd. What passes is
    added to ``taken``, which has ``count`` messages of ``size_bytes`` so far; the first one always fits.
    """
    filtered = 0
    block_end = block_at + len(block)
    for physical, size, _ in ENTRY.iter_unpack(entries[number * ENTRY_SIZE :]):
        if count and (count >= count_max or size_bytes + size > bytes_max):
            break
        if physical < floor or size < RECORD_BYTES_MIN:
            return number, count, size_bytes, filtered, ScanEnd.ODD
        if physical < block_at or physical + size > block_end:
            return number, count, size_bytes, filtered, ScanEnd.ELSEWHERE
        values = property_values(block, physical - block_at, size, keys)
        answer = None if values is None else answers.get(values)
        if answer is None:
            return number, count, size_bytes, filtered, ScanEnd.ODD if values is None else ScanEnd.UNKNOWN
        if answer:
            at = physical - block_at
            taken.append(block[at : at + size])
            count += 1
            size_bytes += size
        else:
            filtered += 1
        number += 1
    return number, count, size_bytes, filtered, ScanEnd.DONE


scan_properties: Final = compiled("scan_properties", _scan_properties)
