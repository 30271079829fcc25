"""Fixed fields of the records of a block, as columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kerolox.protocol.record import MAGIC_V2
from kerolox.spark.records import FIXED, FIXED_BYTES, IPV6_HOSTS, Numbers

Bytes = npt.NDArray[np.uint8]


class Heads:
    """Fixed fields of the records of a block, for all host widths and topic lengths."""

    __slots__ = (
        "body_at", "body_crc", "body_length", "born_ms", "end", "magic", "physical", "positions", "queue_id",
        "queue_offset", "reconsume_times", "size", "store_host", "stored_ms", "sys_flag",
        "topic_at", "topic_end",
    )  # fmt: skip

    def __init__(self, block: Bytes, positions: Numbers) -> None:
        fixed = every_byte(block, f"V{FIXED_BYTES}")[positions].view(FIXED)
        self.positions = positions
        self.size = fixed["size"].astype(np.int64)
        self.end = positions + self.size
        self.magic = fixed["magic"].astype(np.uint32)
        self.body_crc = fixed["body_crc"].astype(np.int64)
        self.queue_id = fixed["queue_id"].astype(np.int32)
        self.queue_offset = fixed["queue_offset"].astype(np.int64)
        self.physical = fixed["physical_offset"].astype(np.int64)
        self.sys_flag = fixed["sys_flag"].astype(np.int32)
        self.born_ms = fixed["born_timestamp"].astype(np.int64)
        self.stored_ms = fixed["store_timestamp"].astype(np.int64)
        self.store_host = np.ascontiguousarray(fixed["store_host"]).view(">i8").astype(np.int64)
        self.reconsume_times = fixed["reconsume_times"].astype(np.int32)
        self.body_length = fixed["body_length"].astype(np.int64)
        self.body_at = positions + FIXED_BYTES
        wide = np.flatnonzero(self.sys_flag & IPV6_HOSTS)
        if len(wide):
            self._shift(block, wide)
        body_end = self.body_at + np.clip(self.body_length, 0, self.size)
        width = np.where(self.magic == MAGIC_V2, 2, 1)
        low = np.minimum(body_end, self.end)
        lengths = np.where(width == 1, block[low], every_byte(block, ">u2")[low]).astype(np.int64)
        self.topic_at = body_end + width
        self.topic_end = self.topic_at + lengths

    def _shift(self, block: Bytes, rows: Numbers) -> None:
        """Move the fields behind IPv6 hosts, which are 12 bytes longer than IPv4 hosts."""
        flags, at = self.sys_flag[rows], self.positions[rows]
        born = at + np.where(flags & 0x10, 12, 0)
        both = born + np.where(flags & 0x20, 12, 0)
        longs, ints = every_byte(block, ">i8"), every_byte(block, ">i4")
        self.stored_ms[rows] = longs[born + 56]
        self.store_host[rows] = longs[born + 64]
        self.reconsume_times[rows] = ints[both + 72]
        self.body_length[rows] = ints[both + 84]
        self.body_at[rows] = both + 88


def every_byte(block: Bytes, kind: str) -> npt.NDArray[np.void]:
    """Return a view of the block with an item at every byte. Only index it: other operations copy it."""
    dtype = np.dtype(kind)
    return np.ndarray((len(block) - dtype.itemsize + 1,), dtype, block.data, strides=(1,))
