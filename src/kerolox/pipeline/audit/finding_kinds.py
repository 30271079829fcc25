"""The kinds of findings of an audit: what each means, what to do, and the columns of its table."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa

TIME: Final = pa.timestamp("ms", tz="UTC")

# Every table of findings has these.
COMMON: Final = [
    ("broker", pa.string()),  # the store, by the shortest name that tells it from the others
    ("topic", pa.string()),
    ("queue_id", pa.int32()),
    ("queue_offset", pa.int64()),
    ("messages", pa.int64()),  # how many it is about
    ("file", pa.string()),
    ("file_offset", pa.int64()),
    ("physical_offset", pa.int64()),  # in the log
    ("what", pa.string()),
    ("note", pa.bool_()),  # worth knowing, but no problem
]


class FindingKind(NamedTuple):
    """One kind of finding."""

    name: str  # of the table
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
    "Bytes in the commit log that are no record, with whole records behind them. What was there is lost.",
    "kerolox store repair STORE_DIR --skip OFFSET keeps what follows; a replica may have it whole.",
)  # fmt: skip
BODY_CHECKSUM = FindingKind(
    "body_checksum", "Wrong checksums",
    "The content of a message is not what was stored: its checksum differs. Consumers that check refuse it.",
    "Send the message again from its source, or take it from a replica. Then look at the disk.",
    (_MSG_ID,),
)  # fmt: skip
DAMAGED_FIELDS = FindingKind(
    "damaged_fields", "Damaged fields",
    "A field in the head of a record holds what no broker writes there, while the rest of the record reads. "
    "No checksum covers these fields.",
    "Look: kerolox store inspect FILE --from FILE_OFFSET --count 1. A replica may have the record whole. "
    "Then look at the disk.",
    (_MSG_ID,),
)  # fmt: skip
WRONG_ENTRIES = FindingKind(
    "wrong_queue_entries", "Queue entries that point elsewhere",
    "A consume queue lists where its messages lie. These entries name another place, size or tag than the "
    "message has: consumers get the wrong message, or none.",
    "Stop the broker, then: kerolox store repair STORE_DIR --queues",
    (("fault", pa.string()), ("expected", pa.int64()), ("found", pa.int64())),
)  # fmt: skip
MISSING_ENTRIES = FindingKind(
    "missing_queue_entries", "Messages missing in their queue",
    "The message is in the commit log, but its consume queue does not list it: no consumer gets it.",
    "Stop the broker, then: kerolox store repair STORE_DIR --queues",
)  # fmt: skip
LONELY_ENTRIES = FindingKind(
    "entries_without_message", "Queue entries without a message",
    "The consume queue lists a message that is not in the commit log.",
    "If the log is damaged, repair that first. Else: kerolox store repair STORE_DIR --queues",
    (("points_at", pa.int64()),),
)  # fmt: skip
GAPS = FindingKind(
    "queue_gaps", "Gaps in queues",
    "The messages of a queue are numbered without gaps. These numbers are in no message of the log: "
    "messages were lost.",
    "Look for damage at the same place of the log; a replica may have the messages.",
)  # fmt: skip
TAKEN = FindingKind(
    "repeated_queue_offsets", "Numbers given twice",
    "Two messages have the same number in their queue. Consumers see only one of them.",
    "Look at both messages: kerolox store inspect FILE --from FILE_OFFSET. One pair alone is most likely a "
    "damaged record. Many of them mean that two processes wrote to this store: stop both, and copy the store "
    "before anything in it is changed.",
)  # fmt: skip
DUPLICATES = FindingKind(
    "duplicates", "Duplicate messages",
    "The same message (by the unique key its producer gave it) is stored more than once in a topic: a "
    "producer that had no answer sent it again, or a transaction was committed twice. Copies that kerolox "
    "dlq resend and replays made do not count: they are marked.",
    "Consumers must tolerate this. If it is frequent, look at the producers' timeouts.",
    (_MSG_ID, ("copies", pa.int64()), ("places", pa.list_(pa.string())), ("stored", TIME)),
)  # fmt: skip
OPEN_HALVES = FindingKind(
    "open_half_messages", "Transactions left open",
    "A transactional message waits as a half message until its producer commits or rolls back. These have "
    "waited longer than a minute, and no consumer has seen them.",
    "See that producers of this group run and answer checks; kerolox checks again by itself.",
    (
        _MSG_ID, ("producer_group", pa.string()), ("age_s", pa.int64()), ("checks", pa.int32()),
        ("born", TIME), ("stored", TIME),
    ),
)  # fmt: skip
DEAD_LETTERS = FindingKind(
    "dead_letters", "Dead letters",
    "Messages a consumer group gave up after all retries. They wait under %DLQ%<group> for a person. Those "
    "that kerolox dlq resend has sent again are no problem any more.",
    "kerolox dlq list shows them; mend the consumer, then kerolox dlq resend.",
    (
        ("consumer_group", pa.string()), ("tag", pa.string()), ("share", pa.float64()),
        ("reconsume_times_max", pa.int32()), ("first_minute", TIME), ("last_minute", TIME),
        ("peak_minute", TIME), ("peak_messages", pa.int64()), ("resent", pa.int64()),
    ),
)  # fmt: skip
RETRIES = FindingKind(
    "retries", "Retries",
    "Messages a consumer group handed back to get them again later.",
    "Look at the consumer's log at the minute with the most.",
    DEAD_LETTERS.extra,
)  # fmt: skip
OTHER = FindingKind("other", "Worth knowing", "Facts about the stores that are no problem by themselves.", "")

KINDS: Final = (
    DAMAGED_LOG, BODY_CHECKSUM, DAMAGED_FIELDS, WRONG_ENTRIES, MISSING_ENTRIES, LONELY_ENTRIES, GAPS, TAKEN,
    DUPLICATES, OPEN_HALVES, DEAD_LETTERS, RETRIES, OTHER,
)  # fmt: skip

TableRow = dict[str, Any]


class Findings:
    """The findings of all kinds. Of each kind ``shown_max`` rows are kept, the others are counted."""

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
