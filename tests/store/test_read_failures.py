"""Failed reads: deleted by the store, or unreadable now; counted, reported once, and read again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.store.dispatch.kit import options_for

from kerolox.store.disk import read_failures
from kerolox.store.disk.read_failures import QUIET_S, ReadFailures, error_name
from kerolox.store.disk.segment import OpenFiles, remove_segment
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import DiskError, OffsetOutOfRange, Unreadable
from kerolox.store.failures import Kind, Operation, decide_error
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.deleted_topics import NAME as DELETED_TOPICS
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

SIZE = 4096


class Rig:
    """A log of four files, and the account of its failed reads."""

    def __init__(self, path: Path) -> None:
        self.files, self.clock = FaultyFiles(), ManualClock()
        self.failures = ReadFailures(self.files, str(path), self.clock)
        self.log = Segments(
            self.files, path / "commitlog", SIZE, open_files=OpenFiles(self.files, failures=self.failures)
        )
        for number in range(4):
            self.log.roll()
            self.log.append(bytes([number]) * SIZE)

    def fail(self, number: int | None = errno.EIO, part: str = "commitlog") -> None:
        self.files.fail_reads(number, path_contains=part)

    def read(self, place: int = 0) -> bytes:
        return self.log.read(place, 10)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOENT])
@pytest.mark.parametrize("hot", [False, True])
def test_a_file_the_store_did_not_remove_is_unreadable(rig: Rig, number: int, hot: bool) -> None:
    rig.fail(number)
    with pytest.raises(Unreadable) as caught:
        rig.log.read_hot(SIZE + 5, 10) if hot else rig.read(SIZE + 5)
    error = caught.value
    assert (error.retriable, error.code, error.os_error, error.offset) == (True, 2, number, 5)
    assert error.path.endswith(f"{SIZE:020d}")
    assert os.strerror(number) in str(error)
    assert decide_error(Kind.LOG, error) is decide_error(Kind.LOG, error, Operation.READ)
    rig.fail(None)
    assert rig.read(SIZE + 5) == b"\1" * 10


def test_a_file_the_store_removed_is_gone_whatever_the_disk_says(rig: Rig) -> None:
    segment = rig.log.all[0]
    remove_segment(rig.log.open_files, segment)  # a reader found it just before
    with pytest.raises(OffsetOutOfRange):
        rig.read()
    rig.fail()
    with pytest.raises(OffsetOutOfRange):
        rig.read()
    assert not rig.failures.total
    assert rig.log.delete_before(2 * SIZE) == 2
    with pytest.raises(OffsetOutOfRange, match=f"holds {2 * SIZE} to {4 * SIZE}"):
        rig.read()


def test_a_file_that_became_shorter_is_unreadable(rig: Rig) -> None:
    os.truncate(rig.log.all[1].path, 100)
    with pytest.raises(Unreadable, match="is 100 bytes long"):
        rig.log.read(SIZE, 200)
    assert list(rig.failures.total) == [("log", "short read")]
    rig.failures.probe()
    assert rig.failures.lasting
    os.truncate(rig.log.all[1].path, SIZE)
    rig.failures.probe()
    assert not rig.failures.lasting


def test_one_line_for_a_cause_and_one_when_it_has_passed(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [line.split()[0] for line in caplog.messages]

    rig.fail()
    for number in range(30):
        with pytest.raises(Unreadable):
            rig.read(number % 3 * SIZE)
    assert lines() == ["store_unreadable"]
    assert rig.failures.total == {("log", "EIO"): 30}
    assert rig.failures.lasting["log", "EIO"][0] == 3
    rig.failures.probe()
    assert rig.failures.lasting["log", "EIO"][0] == 3
    rig.fail(None)
    rig.clock.step_wall(5000)
    rig.failures.probe()
    assert lines() == ["store_unreadable", "store_readable_again"]
    assert "failures=30" in caplog.messages[-1]
    assert not rig.failures.lasting


async def test_a_cause_that_comes_and_goes_is_reported_once_a_minute(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        rig.fail()
        with pytest.raises(Unreadable):
            rig.read()
        rig.fail(None)
        rig.failures.probe()
        await rig.clock.advance(QUIET_S / 10)
    words = [line.split()[0] for line in caplog.messages]
    assert words == ["store_unreadable", "store_readable_again"] * 2
    rig.fail()
    with pytest.raises(Unreadable):
        rig.read()
    await rig.clock.advance(QUIET_S)
    with pytest.raises(Unreadable):
        rig.read()
    assert caplog.messages[4:] == [line for line in caplog.messages[4:] if "store_unreadable" in line]
    assert len(caplog.messages) == 5  # it lasts


def test_a_failed_file_that_is_deleted_ends_its_failure(rig: Rig) -> None:
    rig.fail()
    with pytest.raises(Unreadable):
        rig.read()
    rig.log.delete_before(SIZE)
    rig.failures.probe()
    assert not rig.failures.lasting


def test_places_are_bounded_and_causes_kept_apart(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_failures, "PLACES_MAX", 2)
    for number in (errno.EIO, errno.EACCES):
        rig.fail(number)
        for place in range(3):
            with pytest.raises(Unreadable):
                rig.read(place * SIZE)
    assert {key: count for key, (count, _) in rig.failures.lasting.items()} == {
        ("log", "EIO"): 2,
        ("log", "EACCES"): 2,
    }
    assert error_name(None) == "short read"


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("commitlog", "log"), ("consumequeue/T/0", "queue"), ("consumequeue_ext/T/0", "queue"),
        ("index", "key index"), ("timerlog", "timer"), ("dledger-n0/data", "log"),
        ("dledger-n0/index", "entry index"), ("../elsewhere", "log"),
    ],
)  # fmt: skip
def test_files_are_named_as_the_failure_table_names_them(tmp_path: Path, directory: str, kind: str) -> None:
    files = FaultyFiles()
    (tmp_path / "store").mkdir()
    failures = ReadFailures(files, str(tmp_path / "store"))
    log = Segments(
        files, tmp_path / "store" / directory, SIZE, open_files=OpenFiles(files, failures=failures)
    )
    log.roll()
    log.append(b"0" * 100)
    files.fail_reads()
    with pytest.raises(Unreadable):
        log.read(0, 10)
    assert list(failures.total) == [(kind, "EIO")]


async def test_a_start_that_cannot_read_which_topics_were_deleted_is_refused(tmp_path: Path) -> None:
    async with MessageStore(options_for(tmp_path)) as store:
        await store.put("T", 0, b"0")
        await store.delete_topic("T")
    files = FaultyFiles()
    files.fail_reads(path_contains=DELETED_TOPICS)
    with pytest.raises(DiskError, match=DELETED_TOPICS):
        await MessageStore(options_for(tmp_path), files=files).open()
    files.fail_reads(None, path_contains=DELETED_TOPICS)
    async with MessageStore(options_for(tmp_path), files=files) as store:
        assert store.queues.find("T", 0) is None


@pytest.mark.parametrize("name", ["abort", "consumequeue/T", "commitlog/"])
async def test_a_start_takes_nothing_for_missing_that_it_cannot_look_at(tmp_path: Path, name: str) -> None:
    async with MessageStore(options_for(tmp_path)) as store:
        await store.put("T", 0, b"0")
    files = FaultyFiles()
    files.fail_reads(path_contains=name)
    with pytest.raises(DiskError, match=name):
        await MessageStore(options_for(tmp_path), files=files).open()
    files.fail_reads(None, path_contains=name)
    async with MessageStore(options_for(tmp_path), files=files) as store:
        assert (await store.queues.read("T", 0, 0, 1)).count == 1
