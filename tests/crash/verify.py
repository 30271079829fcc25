"""Open a store and hold it against what was acknowledged, and against itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kerolox.protocol.java import java_hash
from kerolox.protocol.record import decode_record
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, QUEUE_OFFSET, SIZE
from kerolox.store.disk.files import Files
from kerolox.store.index.key_index import hash_key
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.entry import SIMPLE

from .messages import message, number_of, options

Place = tuple[int, int, int]  # physical offset, queue offset, size


class Violation(AssertionError):
    """The store broke a promise."""


@dataclass
class Verified:
    """What a store held."""

    crashed: bool
    records: int
    unacknowledged: int  # there, though nobody was told: allowed


async def verify(
    root: str, mode: str, acked: Mapping[int, Place], *, files: Files | None = None, boot: str | None = None
) -> Verified:
    """Raise Violation unless every acknowledged message is there and the store agrees with itself."""
    store = MessageStore(options(root, mode), files=files, boot=boot)
    found = await store.open()
    try:
        places = await check_log_and_queues(store)
        for number, place in acked.items():
            if places.get(number) != place:
                raise Violation(
                    f"message {number} was acknowledged at {place}, found at {places.get(number)}; "
                    f"the log ends at {found.end}: {found.stop}"
                )
        await _check_keys(store, places)
    finally:
        await store.close()
    if store.state.fenced:
        raise Violation(f"the store fenced itself: {store.state.obstacles}")
    return Verified(found.crashed, len(places), len(places) - len(acked))


async def check_log_and_queues(store: MessageStore) -> dict[int, Place]:
    """Every record of the log is whole, is where its queue says, and no queue says more."""
    places: dict[int, Place] = {}
    queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    records: dict[tuple[str, int], list[bytes]] = {}
    end = store.log.min_offset
    for entries, after in store.log.entries_from(end, store.progress.confirmed):
        end = after
        for entry in entries:
            physical, size = entry[PHYSICAL_OFFSET], entry[SIZE]
            record = store.log.record_at(physical)
            stored = decode_record(record)
            try:
                number = number_of(stored.body)
            except ValueError as error:
                raise Violation(f"the record at {physical} is no message: {error}") from error
            m = message(number)
            if (stored.topic, stored.queue_id, stored.flag, stored.body) != (
                m.topic, m.queue_id, m.flag, m.body,
            ) or not record.endswith(m.properties):  # fmt: skip
                raise Violation(f"the record at {physical} is not message {number} as it was written")
            if number in places:
                raise Violation(f"message {number} is at {places[number]} and again at {physical}")
            queue = queues.setdefault((m.topic, m.queue_id), [])
            if entry[QUEUE_OFFSET] != len(queue):
                raise Violation(
                    f"{m.topic}:{m.queue_id} goes from offset {len(queue) - 1} to {entry[QUEUE_OFFSET]}"
                )
            places[number] = (physical, len(queue), size)
            queue.append((physical, size, java_hash(m.tag) if m.tag else 0))
            records.setdefault((m.topic, m.queue_id), []).append(record)
    if end != store.progress.confirmed:
        raise Violation(f"the log reads to {end}, and should to {store.progress.confirmed}")
    known = {(queue.topic, queue.queue_id): queue for queue in store.consume_queues if queue.max_offset}
    if known.keys() != queues.keys():
        raise Violation(f"queues {sorted(known)}, the log has {sorted(queues)}")
    for key, expected in queues.items():
        queue_ = known[key]
        if (queue_.min_offset, queue_.max_offset) != (0, len(expected)):
            raise Violation(f"{queue_} should be 0..{len(expected)}")
        if list(SIMPLE.each(queue_.read(0, len(expected) + 10))) != expected:
            raise Violation(f"{queue_} differs from the log")
        await _check_reading(store, key, records[key])
    return places


async def _check_reading(store: MessageStore, key: tuple[str, int], expected: list[bytes]) -> None:
    offset = 0
    parts: list[bytes] = []
    while offset < len(expected):
        read = await store.queues.read(*key, offset)
        if not read.count:
            raise Violation(f"nothing to read at {key} offset {offset}: {read.status}")
        parts += read.parts
        offset = read.next_offset
    if b"".join(parts) != b"".join(expected):
        raise Violation(f"{key} does not read as the log has it")


async def _check_keys(store: MessageStore, places: Mapping[int, Place]) -> None:
    """Every message is found by each of its keys, and the index holds nothing else."""
    hashes: dict[int, list[int]] = {}
    count = 0
    for number, (physical, _, _) in places.items():
        m = message(number)
        for key in m.keys:
            hashes.setdefault(hash_key(m.topic, key), []).append(physical)
            count += 1
    for key_hash, physicals in hashes.items():
        found = store.index.query_hash(key_hash, 1 << 30)
        if sorted(found) != sorted(set(physicals)):
            raise Violation(f"the index has {sorted(found)} under a hash of {sorted(set(physicals))}")
    indexed = sum(file.count - 1 for file in store.index._all)
    if indexed != count:
        raise Violation(f"the index holds {indexed} entries for {count} keys")
    for number in list(places)[-20:]:
        m = message(number)
        records = await store.find_by_key(m.topic, m.keys[0])
        if [decode_record(record).body for record in records] != [m.body]:
            raise Violation(f"message {number} is not found by its unique key")
