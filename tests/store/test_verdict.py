"""Logs with files missing, swapped or of another store: the start refuses them, and verify says the same."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.talk import Talk, until

from kerolox.net.dialer import Dialer
from kerolox.store import opening, saving
from kerolox.store.disk.files import Files
from kerolox.store.disk.log_identity import NAME, LogIdentityFile
from kerolox.store.disk.progress_notes import ProgressNotes, ProgressNotesFile
from kerolox.store.errors import DiskError, StoreError
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.repair_note import RepairNote
from kerolox.store.offline.verify import verify
from kerolox.store.options import StoreOptions
from kerolox.store.recovery import CorruptLog, LogEndsEarly, LogGone
from kerolox.store.repair import Repair
from kerolox.store.timer.wheel import WHEEL_BYTES
from kerolox.store.verdict import NotThisLog
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock

from .dispatch.test_rebuild import LOG_FILE, bodies, consume, fill, layout_of, options

COUNT = 260
TIMER_LOG_FILE = 52 * 6 + 16


def file_at(path: Path, number: int) -> Path:
    return path / "commitlog" / f"{number * LOG_FILE:020d}"


async def opened(path: Path) -> list[str]:
    async with MessageStore(options(path), clock=ManualClock()) as store:
        return sorted([*await consume(store, "T0"), *await consume(store, "T1")])


def apaches_was_here(path: Path) -> None:
    (path / "lock").write_bytes(b"lock")  # as its broker writes there at every start


async def other_store(path: Path) -> Path:
    """Messages of the same sizes under the same names, a minute later."""
    clock = ManualClock()
    clock.step_wall(60_000)
    other = path.parent / "other"
    async with MessageStore(options(other), clock=clock) as store:
        from kerolox.protocol.properties import pack

        for number in range(COUNT):
            properties = pack({"TAGS": f"t{number % 3}", "KEYS": f"k{number}"})
            await store.put(f"T{number % 2}", 0, f"m{number}-".encode().ljust(40, b"."), properties)
    return other


async def first_missing(path: Path) -> None:
    file_at(path, 0).unlink()


async def two_missing(path: Path) -> None:
    file_at(path, 0).unlink()
    file_at(path, 1).unlink()


async def swapped(path: Path) -> None:
    one, two, aside = file_at(path, 1), file_at(path, 2), path / "aside"
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


async def foreign(path: Path) -> None:
    shutil.copy(file_at(await other_store(path), 1), file_at(path, 1))


async def zeroed(path: Path) -> None:
    file_at(path, 1).write_bytes(bytes(LOG_FILE))


async def middle_missing(path: Path) -> None:
    file_at(path, 1).unlink()


async def last_missing(path: Path) -> None:
    max((path / "commitlog").iterdir()).unlink()


async def all_missing(path: Path) -> None:
    for file in (path / "commitlog").iterdir():
        file.unlink()


async def end_zeroed(path: Path) -> None:
    last = max((path / "commitlog").iterdir())
    last.write_bytes(last.read_bytes()[:200].ljust(LOG_FILE, b"\0"))


async def flipped_near_the_end(path: Path) -> None:
    last = max((path / "commitlog").iterdir())
    data = bytearray(last.read_bytes())
    data[120] ^= 0xFF
    last.write_bytes(data)


async def half_repaired(path: Path) -> None:
    RepairNote(Files(), path).save("--skip 8192")


async def queue_with_zeros_before_its_number(path: Path) -> None:
    (path / "consumequeue" / "T0" / "0").rename(path / "consumequeue" / "T0" / "00")


async def queue_file_of_another_size(path: Path) -> None:
    file = min((path / "consumequeue" / "T0" / "0").iterdir())
    file.write_bytes(file.read_bytes()[:-20])


async def stray_log_file(path: Path) -> None:
    (path / "commitlog" / "notes.txt").write_text("x")


REFUSED: dict[Callable[..., object], type[StoreError]] = {
    first_missing: NotThisLog,
    two_missing: NotThisLog,
    swapped: NotThisLog,
    foreign: NotThisLog,
    zeroed: NotThisLog,
    middle_missing: CorruptLog,
    last_missing: LogEndsEarly,
    all_missing: LogGone,
    end_zeroed: LogEndsEarly,
    flipped_near_the_end: CorruptLog,
    half_repaired: StoreError,
    queue_with_zeros_before_its_number: StoreError,
    queue_file_of_another_size: StoreError,
    stray_log_file: StoreError,
}


@pytest.mark.parametrize("harm", REFUSED, ids=lambda harm: harm.__name__)
async def test_what_the_start_refuses_verify_finds(tmp_path: Path, harm: Callable[..., object]) -> None:
    path = tmp_path / "store"
    await fill(path, COUNT)
    assert verify(layout_of(path)).clean
    await harm(path)  # type: ignore[misc]
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(REFUSED[harm]) as refused:
        await opened(path)
    assert (
        "Nothing was changed" in str(refused.value)
        or "restart" in str(refused.value)
        or ("set it back" in str(refused.value) or "set back" in str(refused.value))
    ), str(refused.value)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    report = verify(layout_of(path))
    assert not report.clean, harm
    if REFUSED[harm] in (NotThisLog, LogEndsEarly, LogGone):  # in the words of the start
        assert str(refused.value) in [finding.what for finding in report.findings]


async def test_the_missing_beginning_is_named_and_a_repair_takes_what_is_there(tmp_path: Path) -> None:
    places = await fill(tmp_path, COUNT)
    await two_missing(tmp_path)
    with pytest.raises(NotThisLog, match=f"{2 * LOG_FILE} bytes are missing.*store repair") as refused:
        await opened(tmp_path)
    assert refused.value.path == str(file_at(tmp_path, 0))
    Repair(layout_of(tmp_path), clock=ManualClock()).rebuild(queues=True, index=True)
    kept = [n for n, place in enumerate(places) if place[0] >= 2 * LOG_FILE]
    assert await opened(tmp_path) == sorted(bodies(kept))
    assert verify(layout_of(tmp_path)).clean


async def test_files_that_retention_deleted_are_not_missed(tmp_path: Path) -> None:
    places = await fill(tmp_path, COUNT)
    async with MessageStore(options(tmp_path, delete_pause_ms=0), clock=ManualClock()) as store:
        await store.expiry.delete_before(2 * LOG_FILE)
        assert store.log.min_offset == 2 * LOG_FILE
    kept = [n for n, place in enumerate(places) if place[0] >= 2 * LOG_FILE]
    assert await opened(tmp_path) == sorted(bodies(kept))
    assert verify(layout_of(tmp_path)).clean
    file_at(tmp_path, 2).unlink()
    with pytest.raises(NotThisLog, match="is missing"):
        await opened(tmp_path)


async def test_a_kill_in_a_deletion_is_no_loss(tmp_path: Path) -> None:
    """The note says that a file may be gone before it is."""
    await fill(tmp_path, COUNT)
    store = MessageStore(options(tmp_path), clock=ManualClock())
    await store.open()
    deleted: list[int] = []

    def delete(offset: int) -> int:
        deleted.append(offset)
        assert LogIdentityFile(Files(), tmp_path).load().begin == offset  # type: ignore[union-attr]
        file_at(tmp_path, len(deleted) - 1).unlink()
        raise StoreError("killed here, says the test")

    store.segments.delete_before = delete  # type: ignore[method-assign,assignment]
    with pytest.raises(StoreError):
        await store.expiry.delete_before(2 * LOG_FILE)
    shutil.copytree(tmp_path, tmp_path.parent / "copy")
    await store.close()
    assert len(await opened(tmp_path.parent / "copy")) < COUNT


@pytest.mark.parametrize("harm", [swapped, zeroed])
async def test_files_of_apaches_prove_where_they_belong(tmp_path: Path, harm: Callable[..., object]) -> None:
    await fill(tmp_path, COUNT)
    apaches_was_here(tmp_path)
    (tmp_path / NAME).unlink()
    await harm(tmp_path)  # type: ignore[misc]
    with pytest.raises(NotThisLog):
        await opened(tmp_path)
    assert not verify(layout_of(tmp_path)).clean


async def test_after_another_broker_our_note_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It deletes files by its own retention, and tells nobody."""
    caplog.set_level(logging.INFO)
    await fill(tmp_path, COUNT)
    file_at(tmp_path, 0).unlink()
    apaches_was_here(tmp_path)
    assert verify(layout_of(tmp_path)).clean
    assert len(await opened(tmp_path)) < COUNT
    assert "log_identity_made_again" in caplog.text
    file_at(tmp_path, 1).unlink()  # from now on it is ours again
    with pytest.raises(NotThisLog):
        await opened(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"{}\n0000000000\n"])
async def test_a_note_that_does_not_read_is_made_anew(tmp_path: Path, content: bytes) -> None:
    await fill(tmp_path, COUNT)
    (tmp_path / NAME).write_bytes(content)
    assert len(await opened(tmp_path)) == COUNT
    file_at(tmp_path, 0).unlink()
    with pytest.raises(NotThisLog):
        await opened(tmp_path)


async def test_the_check_of_the_end_is_never_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place where it is to begin is damaged itself: then it begins with that file."""
    for module in (opening, saving):
        monkeypatch.setattr(module, "CHECKED_BYTES", 3000)  # as if the log were long
    await fill(tmp_path, COUNT)
    from kerolox.store.disk.sums import SumsFile

    sums = SumsFile(Files(), tmp_path).load()
    assert sums is not None
    assert sums.before > LOG_FILE
    file = file_at(tmp_path, sums.before // LOG_FILE)
    data = bytearray(file.read_bytes())
    data[sums.before % LOG_FILE + 4] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(CorruptLog) as refused:
        await opened(tmp_path)
    assert refused.value.offset == sums.before


async def test_without_sums_the_end_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CHECKED_BYTES", 3000)
    monkeypatch.setattr(opening, "COMPARED_BYTES_MAX", 0)  # as if the log were long
    places = await fill(tmp_path, COUNT)
    (tmp_path / "kerolox.sums").unlink()
    at = places[-10][0]
    file = file_at(tmp_path, at // LOG_FILE)
    data = bytearray(file.read_bytes())
    data[at % LOG_FILE + 4] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(CorruptLog) as refused:
        await opened(tmp_path)
    assert refused.value.offset == at


async def test_zeros_that_a_loss_of_power_left_are_cut_off_as_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk writes in any order: the second file lost its pages, the third kept some. None was flushed."""
    places = await fill(tmp_path, COUNT)
    notes = ProgressNotesFile(Files(), tmp_path)
    notes.save(ProgressNotes(boot="before", dispatched=LOG_FILE, flushed=LOG_FILE))
    notes.close()
    identity = LogIdentityFile(Files(), tmp_path)
    known = identity.load()
    assert known is not None
    identity.save(known.before(LOG_FILE))
    (tmp_path / "kerolox.sums").unlink()
    (tmp_path / "abort").write_text("1")
    await zeroed(tmp_path)
    assert verify(layout_of(tmp_path), queues=False, index=False).findings == []
    kept = [n for n, place in enumerate(places) if place[0] < LOG_FILE]
    assert await opened(tmp_path) == sorted(bodies(kept))
    assert "unflushed_records_cut" in caplog.text


async def test_a_note_that_cannot_be_read_now_is_not_made_anew(tmp_path: Path) -> None:
    """Made anew it would begin with the first file that is there."""
    await fill(tmp_path, COUNT)
    note, first = tmp_path / NAME, file_at(tmp_path, 0)
    note.rename(tmp_path / "note")
    first.rename(tmp_path / "first")
    note.mkdir()  # whatever reads it gets an error of the system
    with pytest.raises(DiskError, match=NAME) as refused:
        await opened(tmp_path)
    assert str(refused.value) in [finding.what for finding in verify(layout_of(tmp_path)).findings]
    note.rmdir()
    (tmp_path / "note").rename(note)
    with pytest.raises(NotThisLog, match="is missing"):
        await opened(tmp_path)
    (tmp_path / "first").rename(first)
    assert len(await opened(tmp_path)) == COUNT


def cut_wheel(path: Path) -> None:
    os.truncate(path / "timerwheel", WHEEL_BYTES // 2)


def cut_timer_log(path: Path) -> None:
    os.truncate(path / "timerlog" / f"{0:020d}", TIMER_LOG_FILE // 2)


def timer_checkpoint_unreadable(path: Path) -> None:
    (path / "config" / "timercheck").unlink()
    (path / "config" / "timercheck").mkdir()


def topics_unreadable(path: Path) -> None:
    (path / "config" / "topics.json").unlink()
    (path / "config" / "topics.json").mkdir()


@pytest.mark.parametrize(
    "harm",
    [cut_wheel, cut_timer_log, timer_checkpoint_unreadable, topics_unreadable],
    ids=lambda harm: harm.__name__,
)
async def test_what_a_broker_refuses_beside_the_log_verify_finds(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    sizes = options(tmp_path, timer_log_file_bytes=TIMER_LOG_FILE)
    changes = {
        name: getattr(sizes, name) for name in ("commit_log_file_bytes", "queue_file_bytes", "index_slots")
    }
    changes |= {"index_entries": sizes.index_entries, "timer_log_file_bytes": TIMER_LOG_FILE}
    async with running_broker(directory=tmp_path, **changes) as broker, Dialer() as dialer:
        for _ in range(3):
            await Talk(dialer, broker).send("T", b"x", {"TIMER_DELAY_MS": "5000000"})
        await until(lambda: not broker.broker.later.timers.arrivals.behind)
        root = Path(broker.broker.store.root)
    layout = find_layout(root, StoreOptions(store_path=str(root), **changes))  # type: ignore[arg-type]
    assert verify(layout).clean
    harm(root)
    with pytest.raises(StoreError) as refused:
        async with running_broker(directory=tmp_path, **changes):
            pass
    assert str(refused.value) in [finding.what for finding in verify(layout).findings]
