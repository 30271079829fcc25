"""Copies of messages that this package makes on purpose, and how an audit tells them from duplicates."""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc

from kerolox.client.admin.dead_letters import MARK, RUN_MARK
from kerolox.pipeline.copy_properties import REPLAY_FROM, REPLAY_ID
from kerolox.spark.records import PropertyPairs

RESENT_FROM = MARK
RESEND = "dlq resend"  # who made a copy
REPLAY = "replay"
_long = struct.Struct(">q").unpack_from


def makers_of(pairs: PropertyPairs, at: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Who made copies on purpose, and of what; nulls for all other messages.

    A copy has the unique key of its message, so the mark it carries is what tells them apart. Two with the
    same mark are duplicates again: two runs at the same time made one each.
    """
    resent, run = pairs.pick(RESENT_FROM).take(at), pairs.pick(RUN_MARK).take(at)
    replay, place = pairs.pick(REPLAY_ID).take(at), pairs.pick(REPLAY_FROM).take(at)
    if resent.null_count == replay.null_count == len(at):
        nothing = pa.nulls(len(at), pa.string())
        return nothing, nothing
    by_replay = _joined(pa.array([REPLAY] * len(at)), replay)
    by_resend = pc.if_else(pc.is_valid(resent), RESEND, None)
    copy_of = pc.coalesce(_joined(by_resend, resent, pc.fill_null(run, "")), _joined(by_replay, place))
    return pc.coalesce(by_resend, by_replay), copy_of


def _joined(*words: pa.Array) -> pa.Array:
    """With a blank between; null where one is."""
    return pc.binary_join_element_wise(*words, " ")


def place_of(offset_id: str) -> tuple[int, int] | None:
    """Address (its first eight bytes) and place of a message by its offset id; None if it is none."""
    try:
        raw = bytes.fromhex(offset_id)
    except ValueError:
        return None
    return (_long(raw, 0)[0], _long(raw, len(raw) - 8)[0]) if len(raw) in (16, 28) else None
