"""Messages that say which one they are, so that any bytes read back can be judged on their own.

Everything about a message follows from its number. Sixteen numbers in a row are a block, and a block goes
to one queue, so that any part of it can be sent as a batch.
"""

from __future__ import annotations

import random
import struct
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from kerolox.protocol import properties as names
from kerolox.store.options import FlushMode, StoreOptions

BLOCK = 16
TOPICS = ("crash-a", "crash-b", "%RETRY%crash")
QUEUES = 3
TAGS = ("", "red", "grün", "blue || black")
BORN_HOST = b"\x0a\x00\x00\x01\x00\x00\x30\x39"
BORN_MS = 1_700_000_000_000
_HEAD = struct.Struct(">QI")
MODES = ("sync", "async", "transient")


class Message(NamedTuple):
    topic: str
    queue_id: int
    flag: int
    body: bytes
    properties: bytes
    keys: tuple[str, ...]  # all it must be found by, the unique key first
    tag: str


@lru_cache(maxsize=4096)
def message(number: int) -> Message:
    """The message of this number."""
    block = random.Random(number // BLOCK)
    topic, queue_id = block.choice(TOPICS), block.randrange(QUEUES)
    chance = random.Random(number)
    # Mostly small, now and then larger than a page, and once in a while empty behind its head.
    length = chance.choice((0, chance.randrange(64), chance.randrange(400), chance.randrange(6000)))
    padding = chance.randbytes(length)
    body = _HEAD.pack(number, crc32(padding)) + padding
    tag = chance.choice(TAGS)
    unique = f"{number:032X}"
    keys = [f"n{number}", f"common{number % 7}"][: chance.randrange(3)]
    table = {"UNIQ_KEY": unique, "WAIT": "true", "crash": str(number)}
    if keys:
        table["KEYS"] = " ".join(keys)
    if tag:
        table["TAGS"] = tag
    return Message(topic, queue_id, number % 100, body, names.pack(table), (unique, *keys), tag)


def number_of(body: bytes) -> int:
    """Which message this body belongs to; ValueError when it is not whole."""
    if len(body) < _HEAD.size:
        raise ValueError(f"a body of {len(body)} bytes")
    number, crc = _HEAD.unpack_from(body)
    if crc32(body[_HEAD.size :]) != crc:
        raise ValueError(f"the body of message {number} is not whole")
    return int(number)


def options(root: str, mode: str) -> StoreOptions:
    """A store with files so small that it rolls all the time, and rounds so quick that kills meet them."""
    return StoreOptions(
        store_path=root,
        flush_mode=FlushMode.SYNC if mode == "sync" else FlushMode.ASYNC,
        transient=mode == "transient",
        commit_log_file_bytes=128 * 1024,
        queue_file_bytes=20 * 100,
        index_slots=500,
        index_entries=1000,
        flush_interval_ms=3,
        flush_pages_min=1,
        flush_thorough_interval_ms=20,
        queue_flush_interval_ms=4,
        commit_interval_ms=3,
        disk_free_enough=64 << 20,
    )
