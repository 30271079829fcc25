"""Copies of messages that kerolox makes on purpose, as opposed to duplicates."""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc

from kerolox.client.admin.dead_letters import MARK, RUN_MARK
from kerolox.pipeline.copy_properties import REPLAY_FROM, REPLAY_ID
from kerolox.spark.records import PropertyPairs

RESENT_FROM = MARK
RESEND = "dlq resend"  # makers of copies
REPLAY = "replay"
_long = struct.Struct(">q").unpack_from


def makers_of(pairs: PropertyPairs, at: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the maker and the original of each message that is an intended copy; null for all others.

    A copy has the unique key of its message and differs only by its mark. Two copies with the same mark are
    duplicates: two runs at the same time made one each.
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
    """Join texts with blanks; null if one of them is null."""
    return pc.binary_join_element_wise(*words, " ")


def place_of(offset_id: str) -> tuple[int, int] | None:
    """Return host (first eight bytes) and log offset of an offset message id; None if the id is invalid."""
    try:
        raw = bytes.fromhex(offset_id)
    except ValueError:
        return None
    return (_long(raw, 0)[0], _long(raw, len(raw) - 8)[0]) if len(raw) in (16, 28) else None
