"""Notes of kerolox as text: a line of JSON, then a line with its CRC-32 in ten digits. See FORMAT.md."""

from __future__ import annotations

import os
from typing import Generic, TypeVar
from zlib import crc32

import msgspec

from kerolox.store.disk.files import Files, PathLike

T = TypeVar("T")

_CRC_DIGITS = 10


def encode_note(value: object) -> bytes:
    """Return the bytes of a note."""
    line = msgspec.json.encode(value)
    return b"%b\n%0*d\n" % (line, _CRC_DIGITS, crc32(line))


def decode_note(data: bytes, kind: type[T]) -> T:
    """Return the value of a note; bytes after its CRC are ignored. Raise ValueError if it is damaged."""
    line, _, rest = data.partition(b"\n")
    digits = rest[:_CRC_DIGITS]
    if not digits.isdigit() or int(digits) != crc32(line):
        raise ValueError("its CRC does not match")
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


class JsonNote(Generic[T]):
    """Note in a file of its own, replaced as a whole. All methods wait for the disk and raise StoreError."""

    def __init__(self, files: Files, directory: PathLike, name: str, kind: type[T]) -> None:
        self.path = os.path.join(os.fspath(directory), name)
        self._files = files
        self._kind = kind

    def read(self) -> T | None:
        """Return the note; None if the file does not exist. Raise ValueError if it is damaged."""
        data = self._files.read_if_exists(self.path)
        return None if data is None else decode_note(data, self._kind)

    def write(self, value: T) -> None:
        """Write, flush and swap in the note."""
        self._files.write_atomic(self.path, encode_note(value))

    def remove(self) -> None:
        """Remove the note, if there is one. The removal is durable when the call returns."""
        if self._files.remove(self.path):
            self._files.sync_dir(os.path.dirname(self.path))
