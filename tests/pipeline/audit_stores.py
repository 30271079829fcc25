"""Stores made by hand, whole in every part, so that one thing at a time can be broken."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from kerolox.protocol import properties as names
from kerolox.protocol.java import java_hash
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import encode_blank, encode_message
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.delay_table import DEFAULT_LEVELS, due_ms, parse_levels
from kerolox.store.queue.entry import SIMPLE

BORN_MS = 1_700_000_000_000
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
DONE = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LEVELS = parse_levels(DEFAULT_LEVELS)


class AuditStore:
    """Appends messages as a broker would."""

    def __init__(self, root: Path, file_bytes: int = 1 << 16, queue_entries: int = 500) -> None:
        self.root = root
        self.file_bytes = file_bytes
        self.queue_file_bytes = queue_entries * SIMPLE.size
        self.messages: list[StoredMessage] = []
        self.log = bytearray()
        self.queues: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
        self.now_ms = BORN_MS

    def add(
        self,
        topic: str = "orders",
        body: bytes = b"body",
        queue_id: int = 0,
        *,
        latency_ms: int = 1,
        reconsume_times: int = 0,
        sys_flag: int = 0,
        queue_offset: int | None = None,
        unique_key: str | None = None,
        **properties: str,
    ) -> StoredMessage:
        self.now_ms += 10
        entries = self.queues[topic, queue_id]
        table = {names.UNIQUE_KEY: unique_key or f"{len(self.messages):032X}", **properties}
        message = StoredMessage(
            topic,
            body,
            queue_id,
            SIMPLE.count(entries) if queue_offset is None else queue_offset,
            len(self.log),
            names.pack({name: value for name, value in table.items() if value}),
            born_timestamp=self.now_ms - latency_ms,
            born_host=HOST if not sys_flag & 0x10 else bytes(16) + HOST[4:],
            store_timestamp=self.now_ms,
            store_host=HOST,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
        )
        size = len(encode_message(message))
        free = self.file_bytes - len(self.log) % self.file_bytes
        if size + 8 > free:
            self.log += encode_blank(free).ljust(free, b"\0")
            message.physical_offset = len(self.log)
        self.log += encode_message(message)
        message.size = size
        code = java_hash(properties["TAGS"]) if "TAGS" in properties else 0
        if topic == SCHEDULE_TOPIC:
            code = due_ms(LEVELS, int(properties["DELAY"]), self.now_ms)
        if not sys_flag & 0x4:
            entries += SIMPLE.pack(message.physical_offset, size, code)
        self.messages.append(message)
        return message

    def fill(self, count: int, topic: str = "orders", queues: int = 2) -> None:
        for number in range(count):
            self.add(
                topic,
                bytes([number % 251]) * (50 + number % 7 * 30),
                number % queues,
                latency_ms=number * 7 % 40,
                TAGS="ab"[number % 2],
                KEYS=f"k{number}",
            )

    def write(self) -> Path:
        _write(self.root / "commitlog", bytes(self.log), self.file_bytes)
        for (topic, queue_id), entries in self.queues.items():
            if entries:
                directory = self.root / "consumequeue" / topic / str(queue_id)
                _write(directory, bytes(entries), self.queue_file_bytes)
        return self.root

    def where(self, place: int) -> tuple[str, int]:
        """File and place in it."""
        return str(
            self.root / "commitlog" / f"{place - place % self.file_bytes:020d}"
        ), place % self.file_bytes

    def queue_file(self, topic: str, queue_id: int) -> Path:
        return self.root / "consumequeue" / topic / str(queue_id) / f"{0:020d}"


def _write(directory: Path, data: bytes, size: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for start in range(0, max(1, len(data)), size):
        with (directory / f"{start:020d}").open("wb") as file:
            file.write(data[start : start + size])
            file.truncate(size)
