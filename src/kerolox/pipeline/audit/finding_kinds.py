"""Kinds of findings of an audit: meaning, next step, and the columns of the table."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa

TIME: Final = pa.timestamp("ms", tz="UTC")

# Columns of every table of findings.
COMMON: Final = [
    ("broker", pa.string()),  # the store, by its shortest unique name
    ("topic", pa.string()),
    ("queue_id", pa.int32()),
    ("queue_offset", pa.int64()),
    ("messages", pa.int64()),  # number of messages affected
    ("file", pa.string()),
    ("file_offset", pa.int64()),
    ("physical_offset", pa.int64()),  # offset in the commit log
    ("what", pa.string()),
    ("note", pa.bool_()),  # information, not a problem
]


class FindingKind(NamedTuple):
    """One kind of finding."""

    name: str  # name of the table
    title: str
    meaning: str
    next: str
    extra: tuple[tuple[str, pa.DataType], ...] = ()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*COMMON, *self.extra])


_MSG_ID = ("msg_id", pa.string())

DAMAGED_LOG = FindingKind(
    "damaged_log", "Damaged log",
    "Bytes in the commit log that are not a record, followed by valid records. The messages there are lost.",
    "kerolox store repair STORE_DIR --skip OFFSET keeps the rest of the log; a replica may be intact.",
)  # fmt: skip
BODY_CHECKSUM = FindingKind(
    "body_checksum", "Wrong checksums",
    "The content of a message changed after it was stored: its checksum differs. Consumers that verify it "
    "reject the message.",
    "Send the message again from its source, or copy it from a replica. Then check the disk.",
    (_MSG_ID,),
)  # fmt: skip
DAMAGED_FIELDS = FindingKind(
    "damaged_fields", "Damaged fields",
    "A field in the header of a record has a value that no broker writes, while the rest of the record is "
    "valid. No checksum covers these fields.",
    "Inspect it: kerolox store inspect FILE --from FILE_OFFSET --count 1. A replica may have the intact "
    "record. Then check the disk.",
    (_MSG_ID,),
)  # fmt: skip
WRONG_ENTRIES = FindingKind(
    "wrong_queue_entries", "Queue entries that point elsewhere",
    "A consume queue lists the log offsets of its messages. These entries have another offset, size or tag "
    "than the message: consumers get the wrong message, or none.",
    "Stop the broker, then: kerolox store repair STORE_DIR --queues",
    (("fault", pa.string()), ("expected", pa.int64()), ("found", pa.int64())),
)  # fmt: skip
MISSING_ENTRIES = FindingKind(
    "missing_queue_entries", "Messages missing in their queue",
    "The message is in the commit log, but not in its consume queue: no consumer gets it.",
    "Stop the broker, then: kerolox store repair STORE_DIR --queues",
)  # fmt: skip
LONELY_ENTRIES = FindingKind(
    "entries_without_message", "Queue entries without a message",
    "The consume queue lists a message that is not in the commit log.",
    "If the log is damaged, repair the log first. Otherwise: kerolox store repair STORE_DIR --queues",
    (("points_at", pa.int64()),),
)  # fmt: skip
GAPS = FindingKind(
    "queue_gaps", "Gaps in queues",
    "The messages of a queue are numbered without gaps. No message in the log has these queue offsets: "
    "messages were lost.",
    "Check the log for damage at the same place; a replica may have the messages.",
)  # fmt: skip
TAKEN = FindingKind(
    "repeated_queue_offsets", "Queue offsets used twice",
    "Two messages have the same offset in their queue. Consumers get only one of them.",
    "Inspect both messages: kerolox store inspect FILE --from FILE_OFFSET. A single pair is most likely a "
    "damaged record. Many pairs mean that two processes wrote to this store: stop both, and copy the store "
    "before you change anything in it.",
)  # fmt: skip
DUPLICATES = FindingKind(
    "duplicates", "Duplicate messages",
    "The same message (by its unique key from the producer) is stored more than once in a topic: a "
    "producer without an answer sent it again, or a transaction was committed twice. Copies made by kerolox "
    "dlq resend and replays are marked and not counted.",
    "Consumers must tolerate duplicates. If there are many, check the producers' timeouts.",
    (_MSG_ID, ("copies", pa.int64()), ("places", pa.list_(pa.string())), ("stored", TIME)),
)  # fmt: skip
OPEN_HALVES = FindingKind(
    "open_half_messages", "Transactions left open",
    "A transactional message is a half message until its producer commits or rolls back. These have been "
    "open for more than a minute, and no consumer has received them.",
    "Make sure that producers of this group run and answer checks; kerolox repeats checks automatically.",
    (
        _MSG_ID, ("producer_group", pa.string()), ("age_s", pa.int64()), ("checks", pa.int32()),
        ("born", TIME), ("stored", TIME),
    ),
)  # fmt: skip
DEAD_LETTERS = FindingKind(
    "dead_letters", "Dead letters",
    "Messages that a consumer group gave up after all retries. They are kept in the topic %DLQ%<group>. "
    "Messages that kerolox dlq resend has sent again no longer count as problems.",
    "List them with kerolox dlq list; fix the consumer, then run kerolox dlq resend.",
    (
        ("consumer_group", pa.string()), ("tag", pa.string()), ("share", pa.float64()),
        ("reconsume_times_max", pa.int32()), ("first_minute", TIME), ("last_minute", TIME),
        ("peak_minute", TIME), ("peak_messages", pa.int64()), ("resent", pa.int64()),
    ),
)  # fmt: skip
RETRIES = FindingKind(
    "retries", "Retries",
    "Messages that a consumer group failed to process and receives again later.",
    "Check the consumer's log at the busiest minute.",
    DEAD_LETTERS.extra,
)  # fmt: skip
OTHER = FindingKind("other", "Worth knowing", "Facts about the stores that are not problems.", "")

KINDS: Final = (
    DAMAGED_LOG, BODY_CHECKSUM, DAMAGED_FIELDS, WRONG_ENTRIES, MISSING_ENTRIES, LONELY_ENTRIES, GAPS, TAKEN,
    DUPLICATES, OPEN_HALVES, DEAD_LETTERS, RETRIES, OTHER,
)  # fmt: skip

TableRow = dict[str, Any]


class Findings:
    """Findings of all kinds. At most ``rows_max`` rows of each kind are kept; the others are counted."""

    def __init__(self, rows_max: int = 1_000_000) -> None:
        self.rows: dict[str, list[TableRow]] = {kind.name: [] for kind in KINDS}
        self.not_kept: dict[str, int] = dict.fromkeys(self.rows, 0)
        self._rows_max = rows_max

    def add(self, kind: FindingKind, *, note: bool = False, messages: int = 1, **row: Any) -> None:
        if len(self.rows[kind.name]) >= self._rows_max:
            self.not_kept[kind.name] += 0 if note else 1
            return
        self.rows[kind.name].append({"note": note, "messages": messages, **row})

    def problems(self, kind: FindingKind) -> list[TableRow]:
        return [row for row in self.rows[kind.name] if not row["note"]]

    def notes(self, kind: FindingKind) -> list[TableRow]:
        return [row for row in self.rows[kind.name] if row["note"]]

    def count(self, kind: FindingKind) -> int:
        return len(self.problems(kind)) + self.not_kept[kind.name]

    @property
    def problem_count(self) -> int:
        return sum(self.count(kind) for kind in KINDS)

    def table(self, kind: FindingKind) -> pa.Table:
        return pa.Table.from_pylist(self.rows[kind.name], schema=kind.schema)
