"""The compiled core (``core/*.c``). The twin of each function, named beside it, says what it does."""

from array import array
from collections.abc import Callable
from typing import Any, TypeVar

from kerolox.protocol.frame import Frame
from kerolox.protocol.plain_sends import Park, SendTarget, Taken
from kerolox.protocol.record_scan import Entry, LogBytes
from kerolox.protocol.send_rules import SendRules
from kerolox.protocol.signature import Signer
from kerolox.store.dispatch.entries import QueueRun
from kerolox.store.dispatch.log_runs import LogRuns
from kerolox.store.index.index_file import IndexItem
from kerolox.store.queue.property_scan import Scanned
from kerolox.store.queue.reading import EntryRun

M = TypeVar("M")

# protocol/frame.py
def split_frames(source: bytes | bytearray, bytes_max: int, /) -> tuple[list[Frame], int, int]: ...

# protocol/plain_sends.py
def take_sends(
    frames: list[Frame],
    at: int,
    targets: dict[bytes, SendTarget],
    rules: SendRules,
    park: Park | None,
    born_host: bytes,
    end: int,
    file_end: int,
    now_ms: int,
    signer: Signer | None,
    /,
) -> Taken | None: ...

# protocol/signature.py; None for fields it leaves to its twin
def signature_of(
    fields: dict[str, str], body: bytes, key: bytes, left_out: frozenset[str], /
) -> str | None: ...

# store/dispatch/queues.py and keys.py
def queue_runs(entries: list[Entry], stops: tuple[bytes, ...], /) -> list[QueueRun] | None: ...
def key_items(entries: list[Entry], /) -> list[tuple[int, int, int]]: ...

# store/index/index_file.py
def index_entries(
    items: list[IndexItem], table: array[int], count: int, begin_ms: int, /
) -> tuple[bytes, int, set[int]]: ...
def index_block(
    items: bytes, table: array[int], count: int, begin_ms: int, first_begin_ms: int, /
) -> tuple[bytes, int]: ...

# store/dispatch/log_runs.py
def log_runs(
    data: bytes,
    at: int,
    before: int,
    end: int,
    lies_at: int,
    stops: tuple[bytes, ...],
    special_topics: tuple[bytes, ...],
    tags_too: bool,
    /,
) -> LogRuns: ...

# protocol/record.py
def read_records(data: bytes, at: int, make: type[M], broker: str, /) -> tuple[list[M], int] | None: ...
def property_values(data: bytes, at: int, size: int, wanted: tuple[bytes, ...], /) -> bytes | None: ...

# protocol/record_scan.py
def plain_records(
    data: LogBytes, start: int, end: int, count_max: int, lies_at: int | None, /
) -> tuple[list[Entry], int]: ...

# spark/records.py
def record_starts(block: Any, at: int, end: int, /) -> tuple[bytes, int]: ...

# spark/record_columns.py
def record_columns(
    block: Any,
    positions: Any,
    kinds: bytes,
    inflate: Callable[[bytes, int], bytes],
    host_text: Callable[[bytes], str],
    /,
) -> list[Any] | None: ...

# spark/store/faults.py
def record_faults(block: Any, positions: Any, sizes: Any, places: Any, check_bodies: bool, /) -> bytes: ...

# store/queue/property_scan.py
def scan_properties(
    entries: bytes,
    number: int,
    block: bytes,
    block_at: int,
    floor: int,
    keys: tuple[bytes, ...],
    answers: dict[bytes, bool],
    taken: list[bytes],
    count: int,
    count_max: int,
    size_bytes: int,
    bytes_max: int,
    /,
) -> Scanned: ...

# store/queue/reading.py
def entry_run(entries: bytes, /) -> EntryRun | None: ...

# store/disk/files.py; on Linux only
def read_now(fd: int, size: int, offset: int, /) -> bytes | None: ...
def read_messages(fd: int, entries: bytes, count: int, base: int, may_wait: bool, /) -> bytes | None: ...
