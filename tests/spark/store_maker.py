"""Store directories made by hand: known records at known places."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from kerolox.protocol import properties as names
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import encode_blank, encode_message
from kerolox.store.queue.entry import SIMPLE

BORN_MS = 1_700_000_000_000
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
IPV6_HOST = bytes(15) + b"\x01" + b"\0\0\x2a\x9f"


class StoreMaker:
    """Appends records to a log and their entries to queues, in files of a size."""

    def __init__(self, root: Path, file_bytes: int = 1 << 16, queue_file_entries: int = 100) -> None:
        self.root = root
        self.file_bytes = file_bytes
        self.queue_file_bytes = queue_file_entries * SIMPLE.size
        self.messages: list[StoredMessage] = []
        self.log = bytearray()
        self.queues: dict[tuple[str, int], bytearray] = defaultdict(bytearray)

    def add(
        self,
        topic: str,
        body: bytes,
        queue_id: int = 0,
        *,
        properties: dict[str, str] | None = None,
        stored_ms: int | None = None,
        ipv6: bool = False,
        sys_flag: int = 0,
        queued: bool = True,
        queue_offset: int | None = None,
    ) -> StoredMessage:
        entries = self.queues[topic, queue_id] if queued else bytearray()
        message = StoredMessage(
            topic,
            body,
            queue_id,
            SIMPLE.count(entries) if queue_offset is None else queue_offset,
            len(self.log),
            names.pack(properties or {}),
            born_timestamp=BORN_MS + len(self.messages),
            born_host=IPV6_HOST if ipv6 else HOST,
            store_timestamp=BORN_MS + len(self.messages) if stored_ms is None else stored_ms,
            store_host=HOST,
            sys_flag=sys_flag | (0x10 if ipv6 else 0),
        )
        record = encode_message(message)
        free = self.file_bytes - len(self.log) % self.file_bytes
        if len(record) + 8 > free:
            self.log += encode_blank(free).ljust(free, b"\0")
            message.physical_offset = len(self.log)
            record = encode_message(message)
        self.log += record
        message.size = len(record)
        entries += SIMPLE.pack(message.physical_offset, len(record), 0)
        self.messages.append(message)
        return message

    def forget_from(self, number: int) -> None:
        """Take back the messages from this one on."""
        del self.log[self.messages[number].physical_offset :]
        for message in self.messages[number:]:
            del self.queues[message.topic, message.queue_id][message.queue_offset * SIMPLE.size :]
        del self.messages[number:]

    def write(self, *, first_file: int = 0) -> str:
        """Put everything in files, the last ones filled with zeros."""
        self._write(self.root / "commitlog", bytes(self.log), self.file_bytes, first_file)
        for (topic, queue_id), entries in self.queues.items():
            directory = self.root / "consumequeue" / topic / str(queue_id)
            self._write(directory, bytes(entries), self.queue_file_bytes)
        return str(self.root)

    def _write(self, directory: Path, data: bytes, size: int, first_file: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for start in range(first_file * size, len(data), size):
            with (directory / f"{start:020d}").open("wb") as file:
                file.write(data[start : start + size])
                file.truncate(size)

    def damage(self, place: int, data: bytes) -> tuple[str, int]:
        """Write over bytes of the log; the file and the place in it."""
        path = self.root / "commitlog" / f"{place - place % self.file_bytes:020d}"
        overwrite(path, place % self.file_bytes, data)
        return str(path), place % self.file_bytes


def overwrite(path: Path | str, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), data, at)


def fill(
    maker: StoreMaker, count: int, topics: Iterable[str] = ("orders",), queues: int = 2, body: int = 100
) -> StoreMaker:
    names_ = list(topics)
    for number in range(count):
        maker.add(
            names_[number % len(names_)],
            bytes([number % 251]) * body,
            number // len(names_) % queues,
            properties={"KEYS": f"k{number}", "TAGS": "ab"[number % 2], "UNIQ_KEY": f"{number:032X}"},
        )
    return maker
