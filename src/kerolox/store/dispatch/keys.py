"""Filling of the key index, after all other followers.

A message can be found by its unique key and by each of its keys. No request waits for that, so entries
collect and are added to the index a few hundred at a time, at the latest after :data:`DELAY_S`.
"""

from __future__ import annotations

import logging

from kerolox.clock import Clock, TimerHandle
from kerolox.compiled import compiled
from kerolox.protocol import properties as names
from kerolox.protocol.record_scan import Entry
from kerolox.store.errors import StoreError
from kerolox.store.index.key_index import KeyHasher, KeyIndex

log = logging.getLogger(__name__)

BATCH = 512
PENDING_MAX = 50_000  # limit of messages whose keys wait for an index that cannot be written
DELAY_S = 0.02
_TRANSACTION_BITS = 0xC
_ROLLED_BACK = 0xC


_HASHER = KeyHasher()


def _key_items(entries: list[Entry]) -> list[tuple[int, int, int]]:
    """Return the index items of log entries: hash, physical offset and store time of each key."""
    wanted: list[tuple[int, int, int]] = []
    find = names.find
    hasher = _HASHER
    last_topic = b""
    heads = hasher.heads(last_topic)
    for _, _, _, _, physical, sys_flag, stored_ms, topic, properties in entries:
        if sys_flag & _TRANSACTION_BITS == _ROLLED_BACK:
            continue
        if topic is not last_topic:
            last_topic, heads = topic, hasher.heads(topic)
        # In the usual case the unique key is the first property, has 32 characters of which the first 28 were
        # seen before, and no later property is a key: then the rest of its hash is a sum.
        head = heads.get(properties[:37])
        if head is not None and properties.find(b"\x02", 37) == 41 and properties.find(b"KEY", 41) < 0:
            tail = properties[37:41]
            if tail.isascii():
                a, b, c, d = tail
                code = (head + a * 29791 + b * 961 + c * 31 + d) & 0xFFFF_FFFF
                if code >= 0x8000_0000:
                    code = 0x1_0000_0000 - code if code != 0x8000_0000 else 0
                wanted.append((code, physical, stored_ms))
                continue
        unique = find(properties, names.AT_UNIQUE_KEY)
        keys = find(properties, names.AT_KEYS)
        if keys is not None:
            wanted += [(code, physical, stored_ms) for code in hasher.keys(topic, unique, keys)]
        elif unique is not None:
            wanted.append((hasher.unique_key(topic, unique), physical, stored_ms))
            if properties.startswith(b"UNIQ_KEY\x01" + unique):
                hasher.learn(topic, unique)
    return wanted


key_items = compiled("key_items", _key_items)


class KeyFiller:
    """Filler of the key index from log entries."""

    def __init__(self, index: KeyIndex, clock: Clock) -> None:
        self._index = index
        self._clock = clock
        self._pending: list[Entry] = []
        self._timer: TimerHandle | None = None
        self._failed: StoreError | None = None  # error of the last failed attempt
        self._on_loop = False  # without a running loop (recovery, repair) entries are added immediately

    def start(self) -> None:
        """Collect entries from here on: the event loop adds them later."""
        self._on_loop = True

    def fill(self, entries: list[Entry]) -> None:
        """Add the keys of these messages. Raise the index's last error if too many wait already."""
        if len(self._pending) >= PENDING_MAX and self._failed is not None:
            raise self._failed
        self._pending += entries
        if not self._on_loop:
            self.put_pending()
        elif len(self._pending) >= BATCH:
            self._put_if_possible()
        elif self._timer is None:
            self._timer = self._clock.call_later(DELAY_S, self._late)

    def put_pending(self) -> None:
        """Add all collected entries to the index, before a query or at the end."""
        if not self._pending:
            return
        self._index.put_many(key_items(self._pending))
        self._pending = []  # only now: a failed put is repeated, and the index skips entries that it has
        self._failed = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.put_pending()

    def _late(self) -> None:
        self._timer = None
        self._put_if_possible()

    def _put_if_possible(self) -> None:
        try:
            self.put_pending()
        except StoreError as error:
            # No request waits for it. The next flush round retries, and reports the obstacle.
            self._failed = error
            log.debug("keys_not_entered count=%d error=%r", len(self._pending), str(error))
