"""Assembly of whole records from pieces of a log that may end anywhere, as a replica receives them."""

from __future__ import annotations

from kerolox.protocol.record_scan import Entry, Stop, scan
from kerolox.store.errors import CorruptRecord, OtherFileSize

_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
_BLANK_MAGIC = b"\xcb\xd4\x31\x94"


class RecordStream:
    """Buffer for the beginning of a record until its end has arrived. A piece never crosses the end of a
    file."""

    def __init__(self, offset: int) -> None:
        self.whole_end = offset  # end of the last whole record; a blank one ends with its file
        self._rest = b""  # bytes of the record that begins there
        self._blank_bytes = 0  # bytes of the blank record there that are still missing
        # Rest, end of the last whole record, and missing bytes after the piece that was checked last
        self._checked: tuple[bytes, int, int] | None = None

    def check(self, piece: bytes, file_end: int) -> list[Entry]:
        """Return the records that a piece completes. Raise CorruptRecord if it cannot be part of a log.

        Nothing is kept before :meth:`take`, because the piece must be written first.
        """
        begin = self.whole_end
        if self._blank_bytes:
            self._checked = self._in_blank(begin, file_end, self._blank_bytes - len(piece))
            return []
        data = self._rest + piece
        entries: list[Entry] = []
        position = 0
        while True:
            found = scan(data, position, lies_at=begin)
            entries = entries + found.entries if entries else found.entries
            position = found.position
            if found.stop is not Stop.END or position >= len(data):
                break
        # The size of a blank record reaches to the end of the file, so its end may still be missing.
        blank = data[position + 4 : position + 8] == _BLANK_MAGIC
        if not blank and found.stop in (Stop.CORRUPT, Stop.UNWRITTEN):
            raise CorruptRecord(
                f"received no valid record at {begin + position}: {found.what}", offset=begin + position
            )
        head = data[position : position + 8]
        size = int.from_bytes(head[:4], "big", signed=True)
        if head[4:] in _MAGICS and begin + position + size > file_end:
            raise OtherFileSize(
                f"received a record of {size} bytes at {begin + position}, but the file ends at {file_end}: "
                "set mappedFileSizeCommitLog to the leader's value",
                offset=begin + position,
            )
        if blank and begin + position + size != file_end:
            raise OtherFileSize(
                f"received the end of a file at {begin + position + size}, but the file ends at {file_end}: "
                "set mappedFileSizeCommitLog to the leader's value",
                offset=begin + position,
            )
        if blank:
            self._checked = self._in_blank(begin + position, file_end, size - (len(data) - position))
        else:
            self._checked = data[position:], begin + position, 0
        return entries

    def take(self) -> None:
        """Continue after the piece that was checked last and is now written."""
        assert self._checked is not None
        self._rest, self.whole_end, self._blank_bytes = self._checked
        self._checked = None

    @staticmethod
    def _in_blank(begin: int, file_end: int, missing: int) -> tuple[bytes, int, int]:
        # Not whole before its last byte: a record that is appended behind half of it could never be found.
        return b"", file_end if missing <= 0 else begin, max(0, missing)
