"""Fill the key index, behind everything else.

A message can be found by its unique key and by each of its keys. Nobody waits for that, so entries
collect and are put into the index a few hundred at a time, at the latest a moment later.
"""

from __future__ import annotations

from kerolox.clock import Clock, TimerHandle
from kerolox.protocol import properties as names
from kerolox.protocol.java import index_hash, java_hash
from kerolox.protocol.record_scan import Entry
from kerolox.store.key_index import KeyIndex

BATCH = 512
DELAY_S = 0.02
_TRANSACTION_BITS = 0xC
_ROLLED_BACK = 0xC


class KeyFiller:
    """Makes index entries of log entries."""

    def __init__(self, index: KeyIndex, clock: Clock) -> None:
        self._index = index
        self._clock = clock
        self._pending: list[Entry] = []
        self._seeds: dict[bytes, int] = {}  # topic → hash of "topic#"
        self._timer: TimerHandle | None = None
        self.on_loop = False  # without a running loop (recovery, repair) everything is put at once

    def fill(self, entries: list[Entry]) -> None:
        self._pending += entries
        if len(self._pending) >= BATCH or not self.on_loop:
            self.put_pending()
        elif self._timer is None:
            self._timer = self._clock.call_later(DELAY_S, self._late)

    def put_pending(self) -> None:
        """Put everything collected so far into the index: now is when somebody asks, or the end."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        wanted: list[tuple[int, int, int]] = []
        for entry in pending:
            _, _, _, _, physical, sys_flag, stored_ms, topic, properties = entry
            if sys_flag & _TRANSACTION_BITS == _ROLLED_BACK:
                continue
            seed = self._seeds.get(topic)
            if seed is None:
                seed = self._seeds[topic] = java_hash(topic.decode("utf-8", "replace") + "#")
            unique = names.find(properties, names.AT_UNIQUE_KEY)
            if unique:
                wanted.append((index_hash(_hash(unique, seed)), physical, stored_ms))
            keys = names.find(properties, names.AT_KEYS)
            if keys:
                wanted += [
                    (index_hash(_hash(key, seed)), physical, stored_ms) for key in keys.split(b" ") if key
                ]
        self._index.put_many(wanted)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.put_pending()

    def _late(self) -> None:
        self._timer = None
        self.put_pending()


def _hash(key: bytes, seed: int) -> int:
    return java_hash(key if key.isascii() else key.decode("utf-8", "replace"), seed)
