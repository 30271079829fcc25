"""Any history of a store against a list in memory.

Files are small, so that the log rolls every few messages and queues and index have many files. After every
restart, and now and then in between, everything the store answers is compared with the model.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.store.dispatch.kit import SYNC, Rig, messages, props, read_all

from kerolox.protocol.record import decode_record
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.queue.reading import ReadStatus
from kerolox.store.state import Obstacle

TOPICS = ("A", "B%x", "%RETRY%g")
topics = st.sampled_from(TOPICS)
queue_ids = st.integers(0, 1)
sizes = st.sampled_from([0, 1, 50, 300, 1000, 3900])
batches = st.lists(st.sampled_from([0, 20, 300]), min_size=1, max_size=6)
Sent = tuple[int, bytes, str]  # physical offset, body, key


class StoreModel(RuleBasedStateMachine):
    """One store, and what it must hold: by queue, all messages ever acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.path = Path(tempfile.mkdtemp(prefix="kerolox-model-"))
        self.rig = Rig(
            self.path, flush_mode=SYNC, queue_file_bytes=20 * 5, index_entries=12, delete_pause_ms=0
        )
        self.sent: dict[tuple[str, int], list[Sent]] = {}
        self.count = 0
        self.store: MessageStore = self.run(self.rig.open())

    def run(self, work):  # type: ignore[no-untyped-def]
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.rig.end())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.path)

    # --- what happens ----------------------------------------------------------------------------

    @initialize(record_crc=st.booleans())
    def begin(self, record_crc: bool) -> None:
        self.rig.options.record_crc = record_crc
        self.run(self.rig.end())
        self.store = self.run(self.rig.open())

    def new(self, size: int) -> tuple[bytes, str]:
        self.count += 1
        return (b"%d:" % self.count).ljust(size, b"."), f"k{self.count}"

    @rule(topic=topics, queue_id=queue_ids, size=sizes)
    def put(self, topic: str, queue_id: int, size: int) -> None:
        body, key = self.new(size)
        place = self.run(self.store.put(topic, queue_id, body, props(KEYS=f"{key} all", TAGS=key)))
        queue = self.sent.setdefault((topic, queue_id), [])
        assert place[1] == len(queue)
        queue.append((place[0], body, key))

    @rule(topic=topics, queue_id=queue_ids, many=batches)
    def put_batch(self, topic: str, queue_id: int, many: list[int]) -> None:
        messages = [self.new(size) for size in many]
        items = [(0, body, props(KEYS=f"{key} all", TAGS=key)) for body, key in messages]
        log = self.store.log
        places = log.append_batch(log.cursor(topic, queue_id), items, born_timestamp=1, born_host=bytes(8))
        log.write()
        self.run(self.store.acks.safe(places[-1][0] + places[-1][2]))
        queue = self.sent.setdefault((topic, queue_id), [])
        assert [place[1] for place in places] == list(range(len(queue), len(queue) + len(items)))
        assert len({place[0] // self.rig.options.commit_log_file_bytes for place in places}) == 1
        queue += [(place[0], body, key) for place, (body, key) in zip(places, messages, strict=True)]

    @rule(topic=topics, queue_id=queue_ids, offset=st.integers(-1, 40), count=st.integers(1, 5))
    def read(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        sent = self.sent.get((topic, queue_id), [])
        low = self.first_kept(topic, queue_id)
        read = self.run(self.store.queues.read(topic, queue_id, offset, count))
        if not sent and read.status is ReadStatus.NO_MESSAGE_IN_QUEUE:
            expected = (ReadStatus.NO_MESSAGE_IN_QUEUE, 0)  # all of it was cut, and power lost since
        elif not sent:
            expected = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        elif offset < low:
            expected = (ReadStatus.OFFSET_TOO_SMALL, low)
        elif offset == len(sent):
            expected = (ReadStatus.OFFSET_OVERFLOW_ONE, offset)
        elif offset > len(sent):
            expected = (ReadStatus.OFFSET_OVERFLOW_BADLY, len(sent))
        else:
            expected = (ReadStatus.FOUND, min(offset + count, len(sent)))
        assert (read.status, read.next_offset) == expected
        if read.status is ReadStatus.FOUND:
            assert [m.body for m in messages(read)] == [body for _, body, _ in sent[offset : offset + count]]

    @rule(seconds=st.sampled_from([0.001, 0.03, 1.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.rig.clock.advance(seconds))

    @rule()
    def flush_round(self) -> None:
        self.run(self.store.housekeeper.flush())

    @rule(files=st.integers(1, 3))
    def retention(self, files: int) -> None:
        starts = [segment.start for segment in self.store.segments.all[:-1]]
        if starts:
            upto = starts[:files][-1] + self.rig.options.commit_log_file_bytes
            self.run(self.store.expiry.delete_before(upto))
            assert self.store.log.min_offset == upto

    @rule(places=st.integers(1, 12))
    def truncate(self, places: int) -> None:
        """Another broker leads, and does not have the last messages."""
        log_min = self.store.log.min_offset
        known = sorted(p for sent in self.sent.values() for p, _, _ in sent if p >= log_min)
        if not known:
            return
        end = known[-places:][0]
        self.store.state.set(Obstacle.FOLLOWER, "a rule")
        cut = self.run(self.store.truncate(end))
        self.store.state.clear(Obstacle.FOLLOWER)
        left = {queue: [one for one in sent if one[0] < end] for queue, sent in self.sent.items()}
        self.sent = {queue: sent for queue, sent in left.items() if sent}
        assert cut is not None
        assert self.store.log.max_offset == end
        self.compare_all()

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        assert not (self.path / "abort").exists()
        self.reopen()
        assert self.store.recovered is not None
        assert self.store.recovered.dispatched_from == self.store.recovered.end

    @rule()
    def kill(self) -> None:
        self.run(self.rig.kill(self.store))
        self.reopen()

    @rule(seed=st.integers(0, 1000), names=st.booleans())
    def lose_power(self, seed: int, names: bool) -> None:
        self.run(self.rig.lose_power(self.store, seed, names=names))
        self.reopen()

    def reopen(self) -> None:
        log_min = self.store.log.min_offset
        self.rig.stores.clear()
        self.store = self.run(self.rig.open())
        # Power loss may bring back a file whose deletion was not yet on the medium: never less than before.
        assert self.store.log.min_offset <= log_min
        if self.store.log.min_offset < log_min:
            self.run(self.store.expiry.delete_before(log_min))
        self.compare_all()

    # --- what must hold --------------------------------------------------------------------------

    def first_kept(self, topic: str, queue_id: int) -> int:
        sent = self.sent.get((topic, queue_id), [])
        log_min = self.store.log.min_offset
        return next((i for i, (physical, _, _) in enumerate(sent) if physical >= log_min), len(sent))

    @invariant()
    def bounds(self) -> None:
        for (topic, queue_id), sent in self.sent.items():
            assert self.store.queues.max_offset(topic, queue_id) == len(sent)
            assert self.store.queues.min_offset(topic, queue_id) == self.first_kept(topic, queue_id)
        assert self.store.state.writable

    def compare_all(self) -> None:
        for (topic, queue_id), sent in self.sent.items():
            low = self.first_kept(topic, queue_id)
            assert self.store.queues.min_offset(topic, queue_id) == low
            assert self.store.queues.max_offset(topic, queue_id) == len(sent)
            found = self.run(read_all(self.store, topic, queue_id))
            assert [(m.physical_offset, m.body) for m in found] == [(p, body) for p, body, _ in sent[low:]]
            assert [m.queue_offset for m in found] == list(range(low, len(sent)))
            queue = self.store.queues.find(topic, queue_id)
            assert queue is not None
            entries = SIMPLE.each(queue.read(low, 1000))
            assert [physical for physical, _, _ in entries] == [physical for physical, _, _ in sent[low:]]
            for physical, body, key in sent[low:][-4:] + sent[low:][:4]:
                records = self.run(self.store.find_by_key(topic, key))
                assert [decode_record(r).body for r in records] == [body]
                assert decode_record(self.run(self.store.message_at(physical))).body == body
            for _, _, key in sent[:low][-2:]:
                assert self.run(self.store.find_by_key(topic, key)) == []


# The gate runs the same few histories every time; the long run looks for new ones.
COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}


class TestStoreModel(StoreModel.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=25, stateful_step_count=25, derandomize=True, **COMMON)


@pytest.mark.long
class TestStoreModelForLong(StoreModel.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=200, stateful_step_count=50, **COMMON)
