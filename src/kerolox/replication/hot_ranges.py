"""Ranges of the log for followers: from memory on the loop, from the disk in a thread."""

from __future__ import annotations

from kerolox.store.message_store import MessageStore


class HotRanges:
    """Reads the log. What one follower was sent last is kept: others that are as far ask for the same."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._kept: tuple[int, bytes] = (-1, b"")

    def available(self, offset: int) -> int:
        """How many bytes lie from here to the end of the file, or of what is written."""
        segment = self._store.segments.segment_at(offset)
        if segment is None:
            return 0
        return max(0, min(segment.end, self._store.progress.committed) - offset)

    def read_hot(self, offset: int, size: int) -> bytes | None:
        """These bytes; None when they would have to be waited for."""
        at, data = self._kept
        if at == offset and len(data) == size:
            return data
        found = self._store.segments.read_hot(offset, size)
        if found is not None:
            self._kept = offset, found
        return found

    async def read_cold(self, offset: int, size: int) -> bytes:
        """The same, waiting for the disk in a thread."""
        return await self._store.in_reader(lambda: self._store.segments.read(offset, size))

    def forget(self) -> None:
        """The log is another now."""
        self._kept = (-1, b"")
