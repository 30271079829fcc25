"""Display the content of any file of a store, row by row. Reads only, takes no lock, and tolerates damage."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, TypeAlias

from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol import json_dialect
from kerolox.protocol.ledger_entry import ENTRY_BYTES_MAX, ENTRY_HEAD_BYTES
from kerolox.protocol.ledger_scan import UNIT_BYTES, decode_head, decode_unit, scan_entries
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import MAGIC_V1, MAGIC_V2, decode_record
from kerolox.protocol.record_scan import CHECK_BODY, PHYSICAL_OFFSET, SIZE, Stop, scan
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.files import File
from kerolox.store.disk.progress_notes import ProgressNotesFile
from kerolox.store.disk.sums import SumsFile
from kerolox.store.index import index_file
from kerolox.store.index.key_index import ENTRIES, SLOTS
from kerolox.store.offline.layout import LEDGER_PREFIX, OnlyReading
from kerolox.store.offline.mend import is_filler
from kerolox.store.queue.entry import BLANK_SIZE, HOLE_TAGS, SIMPLE

ShownRow: TypeAlias = dict[str, Any]

BODY_TEXT_MAX = 200
BODY_HEX_BYTES = 32
_PIECE = 1 << 20
_QUEUE_PIECE = 4096
_SECRET_WORDS = ("secret", "password", "passwd", "token", "credential")
_MAGICS = (MAGIC_V1, MAGIC_V2)
_WHEEL_SLOT = struct.Struct(">qqqii")
_TIMER_UNIT = struct.Struct(">iqiqiqiiq")
_TIMER_CHECK = struct.Struct(">7q")
assert (_WHEEL_SLOT.size, _TIMER_UNIT.size) == (32, 52)
_BLANK_MAGIC = 0xCBD43194 - (1 << 32)


class Kind(Enum):
    """Kinds of files in a store."""

    LOG = "log"
    ENTRIES = "entries"
    ENTRY_INDEX = "entryindex"
    LEDGER_NOTE = "ledgernote"
    QUEUE = "queue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    MARKS = "marks"
    SUMS = "sums"
    CUT = "cut"
    ABORT = "abort"
    LOCK = "lock"
    TABLE = "table"
    TIMER_WHEEL = "timerwheel"
    TIMER_LOG = "timerlog"
    TIMER_CHECK = "timercheck"


class UnknownKind(KeroloxError):
    """File whose kind is unknown."""


def kind_of(path: str) -> Kind:
    """Return the kind of a file, by its directory and name, else by its first bytes."""
    path = os.path.abspath(path)
    name = os.path.basename(path)
    parent = os.path.basename(os.path.dirname(path))
    plain = name.removesuffix(".bak")
    if parent.startswith(LEDGER_PREFIX) and plain in ("checkpoint", "currterm"):
        return Kind.LEDGER_NOTE
    by_name = {
        "checkpoint": Kind.CHECKPOINT,
        "kerolox.marks": Kind.MARKS,
        "kerolox.sums": Kind.SUMS,
        "kerolox.cut": Kind.CUT,
        "abort": Kind.ABORT,
        "lock": Kind.LOCK,
        "timerwheel": Kind.TIMER_WHEEL,
        "timercheck": Kind.TIMER_CHECK,
        "timermetrics": Kind.TABLE,
        "transactionMetrics": Kind.TABLE,
    }
    if plain in by_name:
        return by_name[plain]
    if plain.endswith(".json"):
        return Kind.TABLE
    if name.isascii() and name.isdigit():
        if len(name) == 17:
            return Kind.INDEX
        if parent == "timerlog":
            return Kind.TIMER_LOG
        if len(name) == 20 and parent == "index":
            return Kind.ENTRY_INDEX
        if len(name) == 20:
            with OnlyReading().open(path) as file:
                head = file.pread(ENTRY_HEAD_BYTES, 0)
            if (entry := decode_head(head)) is not None and entry.pos == int(name):
                return Kind.ENTRIES
            if int.from_bytes(head[4:8], "big") in (*_MAGICS, 0xCBD43194) or "commitlog" in parent:
                return Kind.LOG
            return Kind.QUEUE
    kinds = ", ".join(kind.value for kind in Kind)
    raise UnknownKind(
        f"cannot tell the kind of {path} from its name and directory. Choose it: --kind, one of {kinds}."
    )


def rows(
    path: str, kind: Kind | None = None, start: int | None = None, slots: int | None = None
) -> Iterator[ShownRow]:
    """Yield the content of a file, from ``start`` on: a log offset, a queue offset, or the number of an
    entry."""
    kind = kind or kind_of(path)
    if kind is Kind.INDEX:
        return _index_rows(path, start, slots)
    return _READERS[kind](path, start)


# The commit log


def _log_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    with OnlyReading().open(path) as file:
        name = os.path.basename(path)
        base = int(name) if name.isascii() and name.isdigit() else 0
        position = 0
        if start is not None:
            position = start - base if start >= base else start
            if not _record_at(file, position, base):
                position = _next_record(file, position, base)
        while 0 <= position < file.size:
            row, position = _log_row(file, position, base)
            yield row


def _log_row(file: File, at: int, base: int) -> tuple[ShownRow, int]:
    data = file.pread(_PIECE, at)
    result = scan(data, check=CHECK_BODY, count_max=1)
    if result.stop is Stop.INCOMPLETE and at + len(data) < file.size:
        data = file.pread(file.size - at, at)
        result = scan(data, check=CHECK_BODY, count_max=1)
    place: ShownRow = {"offset": base + at, "inFile": at}
    if result.entries:
        entry = result.entries[0]
        row = place | message_row(decode_record(data))
        if base and entry[PHYSICAL_OFFSET] != base + at:
            row["problem"] = f"names another offset, {entry[PHYSICAL_OFFSET]}"
        return row, at + entry[SIZE]
    if result.stop is Stop.BLANK:
        return place | {"record": "blank", "size": int.from_bytes(data[:4], "big")}, file.size
    behind = _next_record(file, at + 1, base)
    if behind < 0:
        free = file.size - at
        if not data.strip(b"\0"):
            return place | {"record": "unwritten", "size": free}, -1
        return place | {"record": "damaged", "size": free, "problem": result.what}, -1
    return place | {"record": "damaged", "size": behind - at, "problem": result.what}, behind


def _entry_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    """Yield entries of a DLedger log; ``start`` is a position in the log or in the file."""
    with OnlyReading().open(path) as file:
        name = os.path.basename(path)
        base = int(name) if name.isascii() and name.isdigit() else 0
        at = 0 if start is None else (start - base if start >= base else start)
        while 0 <= at < file.size:
            data = file.pread(min(ENTRY_BYTES_MAX, file.size - at), at)
            found, _ = scan_entries(data, base + at, CHECK_BODY, 1)
            place: ShownRow = {"position": base + at, "inFile": at}
            head = decode_head(data)
            if head is not None:
                place |= {"entry": head.index, "term": head.term}
            if found.entries:
                place["offset"] = found.entries[0][PHYSICAL_OFFSET]
                yield place | message_row(decode_record(data, ENTRY_HEAD_BYTES))
                at += found.position
                continue
            kinds = {Stop.BLANK: "blank", Stop.UNWRITTEN: "unwritten"}
            row = place | {"record": kinds.get(found.stop, "damaged"), "size": file.size - at}
            yield row if found.stop in kinds else row | {"problem": found.what}
            return


def _entry_index_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    """Yield units of a DLedger log's index; ``start`` is the index of an entry."""
    name = os.path.basename(path)
    base = int(name) // UNIT_BYTES if name.isascii() and name.isdigit() else 0
    with OnlyReading().open(path) as file:
        number = 0 if start is None else (start - base if start >= base else start)
        while (number + 1) * UNIT_BYTES <= file.size:
            data = file.pread(_QUEUE_PIECE * UNIT_BYTES, number * UNIT_BYTES)
            for at in range(0, len(data) // UNIT_BYTES * UNIT_BYTES, UNIT_BYTES):
                unit = decode_unit(data, at)
                if unit is None:
                    return
                row: ShownRow = {
                    "entry": unit.index, "term": unit.term, "position": unit.pos, "size": unit.size,
                }  # fmt: skip
                yield row if unit.index == base + number else row | {"problem": f"is at {base + number}"}
                number += 1


def _record_at(file: File, at: int, base: int) -> bool:
    data = file.pread(_PIECE, at)
    result = scan(data, count_max=1)
    return result.stop is Stop.BLANK or (
        bool(result.entries) and (not base or result.entries[0][PHYSICAL_OFFSET] == base + at)
    )


def _next_record(file: File, at: int, base: int) -> int:
    """Return the offset in the file of the next whole record; -1 if there is none."""
    for low, high in file.written_ranges(at, file.size):
        position = low
        while position < high:
            data = file.pread(min(_PIECE, high - position), position)
            found = -1
            while True:
                places = [data.find(magic.to_bytes(4, "big"), found + 1) for magic in _MAGICS]
                found = min((place for place in places if place >= 0), default=-1)
                if found < 0:
                    break
                candidate = position + found - 4
                if candidate < at:
                    continue
                size = int.from_bytes(file.pread(4, candidate), "big", signed=True)
                if not 0 < size <= file.size - candidate:
                    continue
                result = scan(file.pread(size, candidate), check=CHECK_BODY, count_max=1)
                if result.entries and (not base or result.entries[0][PHYSICAL_OFFSET] == base + candidate):
                    return candidate
            position += len(data) if position + len(data) >= high else max(1, len(data) - 3)
    return -1


def message_row(message: StoredMessage) -> ShownRow:
    """Return a record as a row for display and for programs."""
    topic = message.topic
    row: ShownRow = {
        "record": "message",
        "size": message.size,
        "topic": topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_address,
        "id": message.offset_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "reconsumeTimes": message.reconsume_times,
        "preparedOffset": message.prepared_offset,
        "properties": {
            name: "(not shown)" if _is_secret(name) else value for name, value in message.properties.items()
        },
        "bodyBytes": len(message.body),
        "body": body_text(message.body),
    }
    if is_filler(topic.encode(), message.sys_flag):
        row["record"] = "repaired"
    return row


def body_text(body: bytes) -> str:
    """Return the text if it is printable, else the first bytes as hex."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(letter.isprintable() or letter in "\r\n\t" for letter in text):
        return text if len(text) <= BODY_TEXT_MAX else text[:BODY_TEXT_MAX] + "..."
    return "0x" + body[:BODY_HEX_BYTES].hex() + ("..." if len(body) > BODY_HEX_BYTES else "")


# Queues and index


def _queue_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    name = os.path.basename(path)
    base = int(name) // SIMPLE.size if name.isascii() and name.isdigit() else 0
    delayed = SCHEDULE_TOPIC in path.split(os.sep)
    with OnlyReading().open(path) as file:
        number = 0 if start is None else (start - base if start >= base else start)
        while number * SIMPLE.size < file.size:
            data = file.pread(_QUEUE_PIECE * SIMPLE.size, number * SIMPLE.size)
            data = data[: len(data) - len(data) % SIMPLE.size]
            if not data:
                return
            for physical, size, code in SIMPLE.each(data):
                row: ShownRow = {"queueOffset": base + number}
                number += 1
                if size == BLANK_SIZE:
                    yield row | {"entry": "blank"}
                elif size <= 0 or physical < 0:
                    yield row | {"entry": "unwritten" if not (physical or size or code) else "damaged"}
                    if not (physical or size or code):
                        return
                else:
                    kind = "lost" if code == HOLE_TAGS else "message"
                    meaning = "dueMs" if delayed and code > 0x7FFF_FFFF else "tagsCode"
                    yield row | {"entry": kind, "offset": physical, "size": size, meaning: code}


def _index_rows(path: str, start: int | None, slots: int | None) -> Iterator[ShownRow]:
    with OnlyReading().open(path) as file:
        begin, end, first, last, used, count = index_file.HEADER.unpack(
            file.pread(index_file.HEADER.size, 0).ljust(index_file.HEADER.size, b"\0")
        )
        yield {
            "index": "header",
            "beginTimestamp": begin,
            "endTimestamp": end,
            "beginOffset": first,
            "endOffset": last,
            "slotsUsed": used,
            "entries": max(0, count - 1),
        }
        if slots is None:
            if file.size != index_file.file_size(SLOTS, ENTRIES):
                raise UnknownKind(
                    f"{path} is {file.size} bytes long, not {index_file.file_size(SLOTS, ENTRIES)}: it was "
                    "written with other sizes. Give its number of slots: --slots (maxHashSlotNum)."
                )
            slots = SLOTS
        at = index_file.HEADER.size + slots * index_file.SLOT_SIZE
        number = max(1, start or 1)
        while number < count:
            data = file.pread(min(4096, count - number) * index_file.ENTRY.size, at + number * 20)
            if len(data) < index_file.ENTRY.size:
                return
            for key_hash, physical, seconds, previous in index_file.ENTRY.iter_unpack(
                data[: len(data) // 20 * 20]
            ):
                yield {
                    "index": number,
                    "slot": key_hash % slots,
                    "hash": key_hash,
                    "offset": physical,
                    "storeTimestamp": begin + seconds * 1000,
                    "previous": previous,
                }
                number += 1


# Small files


def _checkpoint_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    checkpoint = Checkpoint(OnlyReading(), path)
    checkpoint.load()
    for name, field in (
        ("logFlushed", "commit_log_ms"),
        ("queuesFlushed", "queues_ms"),
        ("indexFull", "index_ms"),
        ("masterFlushedOffset", "master_flushed_offset"),
        ("confirmedOffset", "confirmed_offset"),
    ):
        yield {"field": name, "value": getattr(checkpoint, field)}


def _marks_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    marks = ProgressNotesFile(OnlyReading(), os.path.dirname(path)).load()
    for name in marks.__struct_fields__:
        yield {"field": name, "value": getattr(marks, name)}


def _sums_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    sums = SumsFile(OnlyReading(), os.path.dirname(path)).load()
    if sums is None:
        return
    yield {"of": "log", "end": sums.end, "checkedFrom": sums.before}
    for queue in sums.queues:
        for name, files in (("queue", queue.files), ("extension", queue.extension)):
            for file in files:
                yield {"of": name, "topic": queue.topic, "queueId": queue.queue_id, **file._asdict()}
    for known in sums.index:
        yield {"of": "index", **known._asdict()}


def _text_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    yield {"field": "content", "value": body_text(OnlyReading().read(path))}


def _table_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    """Yield one row for each entry of each table, in any JSON dialect."""
    data = OnlyReading().read(path)
    try:
        document = json_dialect.loads(data) if data.strip() else {}
    except ProtocolError as error:
        raise UnknownKind(f"{path} is not valid JSON, not even in Java's dialect: {error}") from error
    if not isinstance(document, dict):
        document = {"": document}
    skip = start or 0
    for table, content in document.items():
        entries = content.items() if isinstance(content, dict) else [("", content)]
        for key, value in entries:
            if skip:
                skip -= 1
                continue
            name = str(table) if _is_secret(str(table)) else str(key)
            yield {"table": str(table), "key": _plain(key), "value": _plain(value, name)}


def _plain(value: Any, name: str = "") -> Any:
    """Return a value without secrets, as JSON can represent it."""
    if _is_secret(name):
        return "(not shown)"
    if isinstance(value, json_dialect.ObjectKey):
        return str(dict(value))
    if isinstance(value, dict):
        return {str(key): _plain(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_WORDS)


# Files of Apache's timer


def _wheel_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    with OnlyReading().open(path) as file:
        number = start or 0
        while (number + 1) * _WHEEL_SLOT.size <= file.size:
            data = file.pread(_QUEUE_PIECE * _WHEEL_SLOT.size, number * _WHEEL_SLOT.size)
            for slot in _WHEEL_SLOT.iter_unpack(data[: len(data) // 32 * 32]):
                if slot[0]:
                    names = ("time", "firstPosition", "lastPosition", "messages", "magic")
                    yield {"slot": number} | dict(zip(names, slot, strict=True))
                number += 1


def _timer_log_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    name = os.path.basename(path)
    base = int(name) if name.isdigit() else 0
    with OnlyReading().open(path) as file:
        at = 0 if start is None else (start - base if start >= base else start)
        while at + _TIMER_UNIT.size <= file.size:
            size, previous, magic, written_ms, delay_ms, physical, length, topic_hash, _ = _TIMER_UNIT.unpack(
                file.pread(_TIMER_UNIT.size, at)
            )
            if size != _TIMER_UNIT.size:
                kind = "blank" if magic == _BLANK_MAGIC else "unwritten" if not size else "damaged"
                yield {"position": base + at, "unit": kind, "size": size}
                return
            words = [word for bit, word in ((2, "roll"), (4, "delete")) if magic & bit]
            yield {
                "position": base + at,
                "unit": " ".join(words) or "message",
                "previous": previous,
                "writtenMs": written_ms,
                "dueMs": written_ms + delay_ms,
                "offset": physical,
                "size": length,
                "topicHash": topic_hash,
            }
            at += _TIMER_UNIT.size


def _timer_check_rows(path: str, start: int | None) -> Iterator[ShownRow]:
    data = OnlyReading().read(path)[: _TIMER_CHECK.size].ljust(_TIMER_CHECK.size, b"\0")
    names = (
        "lastReadTimeMs",
        "lastTimerLogFlushPos",
        "lastTimerQueueOffset",
        "masterTimerQueueOffset",
        "stateVersion",
        "timestamp",
        "counter",
    )
    for name, value in zip(names, _TIMER_CHECK.unpack(data), strict=True):
        yield {"field": name, "value": value}


_READERS: dict[Kind, Callable[[str, int | None], Iterator[ShownRow]]] = {
    Kind.LOG: _log_rows,
    Kind.ENTRIES: _entry_rows,
    Kind.ENTRY_INDEX: _entry_index_rows,
    Kind.LEDGER_NOTE: _text_rows,
    Kind.QUEUE: _queue_rows,
    Kind.CHECKPOINT: _checkpoint_rows,
    Kind.MARKS: _marks_rows,
    Kind.SUMS: _sums_rows,
    Kind.CUT: _text_rows,
    Kind.ABORT: _text_rows,
    Kind.LOCK: _text_rows,
    Kind.TABLE: _table_rows,
    Kind.TIMER_WHEEL: _wheel_rows,
    Kind.TIMER_LOG: _timer_log_rows,
    Kind.TIMER_CHECK: _timer_check_rows,
}
