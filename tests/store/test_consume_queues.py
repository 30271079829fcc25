from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from kerolox.store.disk.files import Files
from kerolox.store.errors import DiskFull, FsyncFailed, StoreError
from kerolox.store.queue.consume_queues import ConsumeQueues, flush
from kerolox.store.queue.entry import SIMPLE
from kerolox.testing.faults import FaultyFiles


def open_queues(path: Path, files: Files | None = None, *, crashed: bool = False) -> ConsumeQueues:
    queues = ConsumeQueues(files or Files(), path, file_bytes=4 * 20)
    queues.load()
    queues.recover(crashed=crashed)
    return queues


def append(queues: ConsumeQueues, topic: str, queue_id: int, physical: int) -> None:
    queue = queues.queue(topic, queue_id)
    queue.append(physical, 100, 0, queue.next_offset)


def test_queues_come_back_from_their_directories(tmp_path: Path) -> None:
    queues = open_queues(tmp_path / "consumequeue")
    for n in range(20):
        append(queues, "orders" if n % 2 else "%RETRY%billing", n % 3, n * 100)
    assert not (tmp_path / "consumequeue").exists()
    flush(queues.write())
    queues.close()
    assert sorted(os.listdir(tmp_path / "consumequeue")) == ["%RETRY%billing", "orders"]
    assert sorted(os.listdir(tmp_path / "consumequeue/orders")) == ["0", "1", "2"]

    again = open_queues(tmp_path / "consumequeue")
    assert len(again) == 6
    assert again.max_physical == 2000
    assert {(q.topic, q.queue_id, q.next_offset) for q in again} == {
        (q.topic, q.queue_id, q.next_offset) for q in queues
    }
    assert again.find("orders", 9) is None
    assert again.find("nothing", 0) is None
    assert again.queue("orders", 1) is again.find("orders", 1)


def test_an_empty_store_has_no_queues(tmp_path: Path) -> None:
    queues = open_queues(tmp_path / "none")
    assert (len(queues), queues.max_physical, queues.write()) == (0, -1, [])


def test_strays_are_passed_over_and_ambiguous_names_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "orders" / "old").mkdir(parents=True)
    (tmp_path / "orders" / "7").write_text("a file")
    assert len(open_queues(tmp_path)) == 0
    (tmp_path / "orders" / "007").mkdir()
    with pytest.raises(StoreError, match=r"007 has leading zeros, so it is not the directory of queue 7"):
        open_queues(tmp_path)


@pytest.mark.parametrize("topic", ["", ".", "..", "../up", "a/b", "a\\b", "nul\0", "é" * 200])
def test_a_topic_that_is_no_directory_name_is_refused(tmp_path: Path, topic: str) -> None:
    queues = open_queues(tmp_path)
    with pytest.raises(StoreError, match="is not a valid directory name"):
        queues.queue(topic, 0)
    with pytest.raises(StoreError, match="queue id of topic 'orders' is -1"):
        queues.queue("orders", -1)
    assert len(queues) == 0


def test_a_round_writes_only_what_is_new_and_gives_back_memory(tmp_path: Path) -> None:
    disk = FaultyFiles()
    queues = open_queues(tmp_path, disk)
    append(queues, "orders", 0, 0)
    append(queues, "orders", 1, 100)
    flush(queues.write())
    writes, syncs = disk.writes, disk.syncs
    append(queues, "orders", 1, 200)
    to_flush = queues.write()
    assert len(to_flush) == 1
    flush(to_flush)
    assert (disk.writes - writes, disk.syncs - syncs) == (1, 1)
    assert queues.queue("orders", 0)._tail is None
    assert queues.queue("orders", 1)._tail is not None
    queues.write()
    assert queues.queue("orders", 1)._tail is None
    assert queues.queue("orders", 1).entry(1) == (200, 100, 0)


def test_a_queue_that_cannot_be_written_waits_for_the_next_round(tmp_path: Path) -> None:
    disk = FaultyFiles()
    queues = open_queues(tmp_path, disk)
    append(queues, "orders", 0, 0)
    flush(queues.write())
    append(queues, "orders", 1, 100)  # needs a new file
    append(queues, "orders", 0, 200)
    disk.fill()
    with pytest.raises(DiskFull):
        queues.write()
    assert queues.queue("orders", 0).unwritten == 0
    assert queues.queue("orders", 1).unwritten == 1
    disk.make_room()
    flush(queues.write())
    disk.power_loss()
    again = open_queues(tmp_path, disk, crashed=True)
    assert [(q.queue_id, q.next_offset) for q in again] == [(0, 2), (1, 1)]


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="blocks cannot be asked for here")
def test_a_queue_with_one_message_takes_a_page_of_the_disk(tmp_path: Path) -> None:
    queues = ConsumeQueues(Files(), tmp_path / "q", extension_directory=tmp_path / "ext", extended=True)
    append(queues, "orders", 0, 0)
    flush(queues.write())
    (name,) = os.listdir(tmp_path / "q/orders/0")
    taken = os.stat(tmp_path / "q/orders/0" / name)
    assert taken.st_size == 300_000 * SIMPLE.size  # RocketMQ refuses files of another length
    assert taken.st_blocks * 512 <= 2 * 4096
    for physical in range(100, 1_000_000, 100):
        append(queues, "orders", 0, physical)
    flush(queues.write())
    taken = os.stat(tmp_path / "q/orders/0" / name)
    assert 200_000 <= taken.st_blocks * 512 <= 300_000  # 10,000 entries, in steps of doubled size


def test_all_are_flushed_before_a_failure_is_told(tmp_path: Path) -> None:
    disk = FaultyFiles()
    queues = open_queues(tmp_path, disk)
    append(queues, "orders", 0, 0)
    append(queues, "orders", 1, 100)
    disk.fail_syncs(1)
    with pytest.raises(FsyncFailed):
        flush(queues.write())
    disk.power_loss(names=True)
    again = open_queues(tmp_path, disk, crashed=True)
    assert [(q.queue_id, q.next_offset) for q in again if q.next_offset] == [(1, 1)]


def test_after_a_crash_what_was_found_is_flushed(tmp_path: Path) -> None:
    disk = FaultyFiles()
    queues = open_queues(tmp_path, disk)
    for n in range(10):
        append(queues, "orders", 0, n * 100)
    queues.write()
    disk.kill()
    again = open_queues(tmp_path, disk, crashed=True)
    assert again.queue("orders", 0).next_offset == 10
    flush(again.write())
    disk.power_loss()
    assert open_queues(tmp_path, disk, crashed=True).queue("orders", 0).next_offset == 10


def test_truncation_and_deletion_reach_every_queue(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    for n in range(40):
        append(queues, "orders", n % 2, n * 100)
    queues.write()
    queues.truncate_to_physical(3500)
    assert [q.next_offset for q in queues] == [18, 17]
    assert queues.delete_before(1000) == 2
    assert [q.min_offset for q in queues] == [5, 5]
    queues.correct_min_offsets(2050)
    assert [q.min_offset for q in queues] == [11, 10]
    assert queues.max_physical == 3500


def test_a_deleted_topic_leaves_nothing_and_can_come_back(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    for n in range(10):
        append(queues, "orders", 0, n * 100)
        append(queues, "bills", 0, n * 100 + 50)
    queues.write()
    append(queues, "orders", 0, 5000)
    assert queues.delete_topic("orders")
    assert not queues.delete_topic("orders")
    assert os.listdir(tmp_path) == ["bills"]
    queues.write()
    assert os.listdir(tmp_path) == ["bills"]
    append(queues, "orders", 0, 6000)
    queues.write()
    assert (tmp_path / "orders/0" / f"{0:020d}").read_bytes()[:20] == SIMPLE.pack(6000, 100, 0)
    queues.delete_all()
    assert len(queues) == 0
    assert os.listdir(tmp_path) == []


def test_an_idle_queue_is_small(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queues.queue("warm-up", 0)
    tracemalloc.start()
    for n in range(1000):
        queues.queue("orders", n)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 1000 < 4096
