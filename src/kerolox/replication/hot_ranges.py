"""Ranges of the log for followers: from memory on the loop, from disk in a thread."""

from __future__ import annotations

from kerolox.store.message_store import MessageStore


class HotRanges:
    """Reader of the log. It caches the range sent last, because followers at the same offset request the same
    one."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._kept: tuple[int, bytes] = (-1, b"")

    def available(self, offset: int) -> int:
        """Return the number of bytes from the offset to the end of the file or of the written log."""
        segment = self._store.segments.segment_at(offset)
        if segment is None:
            return 0
        return max(0, min(segment.end, self._store.progress.committed) - offset)

    def read_hot(self, offset: int, size: int) -> bytes | None:
        """Return these bytes; None if the disk would have to be read."""
        at, data = self._kept
        if at == offset and len(data) == size:
            return data
        found = self._store.segments.read_hot(offset, size)
        if found is not None:
            self._kept = offset, found
        return found

    async def read_cold(self, offset: int, size: int) -> bytes:
        """Return these bytes, read from disk in a thread."""
        return await self._store.readers.read(lambda: self._store.segments.read(offset, size))

    def forget(self) -> None:
        """Drop the cached range: the log has changed."""
        self._kept = (-1, b"")
