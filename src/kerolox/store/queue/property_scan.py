"""Selection of messages by a filter on their properties, without a Python step for each message."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Protocol

from kerolox.compiled import compiled
from kerolox.protocol.record import RECORD_BYTES_MIN, property_values
from kerolox.store.queue.entry import SIMPLE


class PropertyCondition(Protocol):
    """Filter on the values of some properties that remembers its answers."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Return the names of the properties."""

    @property
    def answers(self) -> dict[bytes, bool]:
        """Return the answers by property values, in the form of
        :func:`~kerolox.protocol.record.property_values`."""

    @property
    def terms(self) -> int:
        """Return the number of terms in the condition: the cost of one answer."""

    def __call__(self, data: bytes, at: int, size: int) -> bool: ...


class ScanEnd(IntEnum):
    """Reasons why a property scan stops before an entry."""

    DONE = 0  # the entries or the limits are exhausted
    ELSEWHERE = 1  # its message is not in the block
    UNKNOWN = 2  # no answer is remembered for its values
    ODD = 3  # it is not an ordinary message


# Number of the entry, messages, their bytes, filtered out, a ScanEnd
Scanned = tuple[int, int, int, int, int]


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
    """Scan queue entries from ``number`` on, as far as remembered answers suffice.

    ``block`` are the bytes of the log from ``block_at`` on; a message before ``floor`` is odd. Matching
    messages are added to ``taken``, which has ``count`` messages of ``size_bytes`` so far; the first one
    always fits.
    """
    filtered = 0
    block_end = block_at + len(block)
    for physical, size, _ in SIMPLE.each(SIMPLE.part(entries, number)):
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
