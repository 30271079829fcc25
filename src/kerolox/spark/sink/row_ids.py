"""The message ids of a table's rows: made of query, batch, partition and row, so a row has the same id again.

An id is a unique key as every client makes them, 32 hexadecimal digits, with its time where tools look for it
(``mqadmin queryMsgByUniqueKey`` searches from there on)::

    digits  0-11   a hash of query and batch
           12-19   number of the row in its partition
           20-27   milliseconds from the beginning of the month to the batch
           28-31   number of the partition
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt

from kerolox.errors import KeroloxError
from kerolox.protocol.message_id import month_of

PARTITIONS_MAX: Final = 1 << 16
ROWS_MAX: Final = 1 << 32
MARK: Final = b"UNIQ_KEY\x01"
_ROW_AT: Final = len(MARK) + 12
_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS: Final = np.arange(28, -4, -4, dtype=np.int64)


class RowIds:
    """Generator of the ids of one partition's rows, which also recognises them."""

    def __init__(self, write: str, partition: int, started_ms: int = 0) -> None:
        """``write`` names query and batch, or the job; ``started_ms`` is when that began, the same for every
        attempt."""
        if not 0 <= partition < PARTITIONS_MAX:
            raise KeroloxError(
                f"partition {partition}: at most {PARTITIONS_MAX} partitions can be written at once; "
                "coalesce the rows into fewer"
            )
        self.head = sha256(write.encode()).hexdigest()[:12].upper().encode()
        since_ms = started_ms - month_of(started_ms)[0] if started_ms else 0
        self.tail = b"%08X%04X" % (since_ms & 0xFFFF_FFFF, partition)

    def column(self, first: int, count: int, more: bytes = b"") -> npt.NDArray[np.uint8]:
        r"""The packed property with the id of each row, ``UNIQ_KEY \x01 id \x02``, and ``more`` behind it."""
        if first + count > ROWS_MAX:
            raise KeroloxError(f"a partition of more than {ROWS_MAX} rows; repartition them into more")
        pattern = np.frombuffer(MARK + self.head + b"00000000" + self.tail + b"\x02" + more, np.uint8)
        rows = np.empty((count, len(pattern)), np.uint8)
        rows[:] = pattern
        numbers = np.arange(first, first + count, dtype=np.int64)
        rows[:, _ROW_AT : _ROW_AT + 8] = _DIGITS[(numbers[:, None] >> _SHIFTS) & 15]
        return rows

    def has(self, unique_key: bytes) -> bool:
        """Return True if an id belongs to a row of this partition."""
        return len(unique_key) == 32 and unique_key[:12] == self.head and unique_key[20:] == self.tail

    @staticmethod
    def row(unique_key: bytes) -> int:
        return int(unique_key[12:20], 16)
