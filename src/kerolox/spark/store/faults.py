"""Which records of a block are none, looked at before they are decoded."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from kerolox.compiled import compiled
from kerolox.protocol.record_scan import CHECK_BODY, scan
from kerolox.spark.records import FIXED, FIXED_BYTES, IPV6_HOSTS, MAGIC, PROPERTIES_MAX, TOPIC_MAX, Positions

RECORD_BYTES_MIN = 91

Block = bytes | memoryview
Mask = npt.NDArray[np.bool_]


def faults(
    block: Block, positions: Positions, sizes: Positions, places: Positions, *, check_bodies: bool
) -> Mask:
    """True for each record of another size, whose lengths do not add up, or that says it lies elsewhere.

    ``places``: where in the log each lies. ``check_bodies``: or whose body breaks its CRC.
    """
    return np.frombuffer(record_faults(block, positions, sizes, places, check_bodies), np.bool_)


def _record_faults(
    block: Block, positions: Positions, sizes: Positions, places: Positions, check_bodies: bool
) -> bytes:
    bad: Mask = (positions < 0) | (positions > len(block) - np.maximum(sizes, RECORD_BYTES_MIN))
    inside = np.flatnonzero(~bad)
    if len(inside):
        bad[inside] = _inside(block, positions[inside], sizes[inside], places[inside], check_bodies)
    return bad.tobytes()


record_faults = compiled("record_faults", _record_faults)


def _inside(
    block: Block, positions: Positions, sizes: Positions, places: Positions, check_bodies: bool
) -> Mask:
    fixed = fixed_parts(block, positions)
    bad: Mask = (fixed["size"] != sizes) | (fixed["physical_offset"] != places)
    usual = (fixed["magic"] == MAGIC) & (fixed["sys_flag"] & IPV6_HOSTS == 0)
    bytes_ = np.frombuffer(block, np.uint8)
    last = len(block) - 1
    body_length = fixed["body_length"].astype(np.int64)
    bad |= (body_length < 0) | (body_length > sizes - RECORD_BYTES_MIN)
    body_end = np.minimum(positions + FIXED_BYTES + np.where(bad, 0, body_length), last)
    topic_end = np.minimum(body_end + 1 + bytes_[body_end], last - 1)
    packed_length = bytes_[topic_end].astype(np.int64) << 8 | bytes_[topic_end + 1]
    bad |= topic_end + 2 + packed_length != positions + sizes
    bad |= (bytes_[body_end] > TOPIC_MAX) | (packed_length > PROPERTIES_MAX)
    for number in np.flatnonzero(~usual).tolist():
        # Edges lie elsewhere: ask the reader that knows all kinds.
        at = int(positions[number])
        record = bytes(block[at : at + int(sizes[number])])
        found = scan(record, check=CHECK_BODY if check_bodies else 0, count_max=1).entries
        bad[number] = not found or (
            fixed["size"][number] != sizes[number] or fixed["physical_offset"][number] != places[number]
        )
    if check_bodies:
        for number in np.flatnonzero(usual & ~bad & (body_length > 0)).tolist():
            start = int(positions[number]) + FIXED_BYTES
            crc = zlib.crc32(block[start : start + int(body_length[number])])
            bad[number] = crc & 0x7FFF_FFFF != fixed["body_crc"][number]
    return bad


def fixed_parts(block: Block, positions: Positions) -> npt.NDArray[np.void]:
    """The fixed parts of the records that begin at these positions, as if none had an IPv6 address."""
    if not len(positions):
        return np.zeros(0, FIXED)
    every_byte = np.ndarray((len(block) - FIXED_BYTES + 1,), f"V{FIXED_BYTES}", block, strides=(1,))
    fixed: npt.NDArray[np.void] = every_byte[positions].view(FIXED)
    return fixed
