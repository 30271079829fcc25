"""``expire`` and ``compact`` beside a run that archives to the same table: every message is there once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kerolox.client.messages import Message, Receipt
from kerolox.errors import KeroloxError
from kerolox.pipeline.archive import upkeep
from kerolox.pipeline.archive.archive import Archive
from kerolox.pipeline.archive.files import Format
from kerolox.pipeline.archive.iceberg import NOTES, IcebergArchive
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.lake.iceberg_table import IcebergTable
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.unnamed_metadata import SNAPSHOT_AGE
from kerolox.pipeline.lake.upkeep import OthersCameFirst
from kerolox.spark.source.options import read_wanted
from kerolox.testing.threads import BrokerThread
from tests.rig.waiting import wait_until

from . import archiving
from .archiving import here
from .iceberg_archiving import NAME, archive, bodies
from .test_archive import expected
from .test_archive import messages as sent_messages
from .test_iceberg_archive import files_of, messages, named, once

Send = Callable[[Sequence[Message]], list[Receipt]]
EVERYTHING = -2 * 3_600_000  # this hour counts as over
KEEP_MS = 30 * 86_400_000


@pytest.fixture
def place(tmp_path: Path) -> CatalogPlace:
    return CatalogPlace(f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path / "warehouse"))


def look_after(place: CatalogPlace) -> None:
    upkeep.compact(IcebergArchive(NAME, place), older_than_ms=EVERYTHING)
    upkeep.expire(IcebergArchive(NAME, place), keep_ms=KEEP_MS)


def test_both_at_work(place: CatalogPlace, broker: BrokerThread, topic: str, send: Send) -> None:
    """An archive follows, and meanwhile files are joined and snapshots forgotten at once, again and again."""
    send(messages(topic, 20))
    archive(place, broker.nameserver_address, topic, format=Format(rows_max=5), join=False)
    with place.open().load_table(NAME).transaction() as change:
        change.set_properties({SNAPSHOT_AGE: "0"})
    wanted = read_wanted(
        {"nameserver": broker.nameserver_address, "topic": topic, "group": "archive"}, "batch"
    )
    enough = threading.Event()
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            with Archive(wanted, IcebergArchive(NAME, place), here, format=Format(rows_max=5)) as running:
                running.follow(lambda pause_s: enough.wait(min(pause_s, 0.05)), interval_s=0.01)
        except BaseException as error:
            failures.append(error)

    archiver = threading.Thread(target=follow)
    archiver.start()
    try:
        for number in range(1, 7):
            send(messages(topic, 20, first=20 * number))
            look_after(place)
        wait_until(lambda: bool(failures) or bodies(place) == once(140), lambda: str(bodies(place)), 60)
    finally:
        enough.set()
        archiver.join(60)
    assert not failures
    look_after(place)
    assert bodies(place) == once(140)
    assert archive(place, broker.nameserver_address, topic).rows == 0
    look_after(place)
    assert files_of(place) == named(place)


def test_a_note_that_is_being_written_is_nobodys(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    """A run that is killed leaves it; others see it while it is written. It is removed with the run's own."""
    send(messages(topic, 20))
    archive(place, broker.nameserver_address, topic)
    storage = LocalFolder(place.open().load_table(NAME).location().removeprefix("file://") + "/data")
    storage.put(f"{NOTES}/gone", b'{"sweptMs": 0}')
    storage.put(f"{NOTES}/.gone.x1.tmp", b"")
    storage.put(f"{NOTES}/.another.x2.tmp", b"")
    send(messages(topic, 20, first=20))
    assert archive(place, broker.nameserver_address, topic).rows == 20
    assert [path for path, _ in storage.files(NOTES)] == [f"{NOTES}/.another.x2.tmp"]


def test_upkeep_when_files_are_written_and_not_committed(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    """It takes the run for killed, and removes them; the run notices, and does the round again."""
    send(messages(topic, 20))
    archive(place, broker.nameserver_address, topic, format=Format(rows_max=5), join=False)
    send(messages(topic, 20, first=20))
    rounds: list[int] = []

    def run(works: Sequence[Any]) -> list[Any]:
        done = here(works)
        rounds.append(len(works))
        if len(rounds) == 1:
            look_after(place)
        return done

    with pytest.raises(OthersCameFirst, match="The round is repeated"):
        archive(place, broker.nameserver_address, topic, run=run)
    assert bodies(place) == once(20)
    assert archive(place, broker.nameserver_address, topic).rows == 20
    assert bodies(place) == once(40)
    assert files_of(place) == named(place)


def test_an_archive_commits_while_files_are_joined(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the joining for a killed run, and removes what that has written; ``compact`` begins again."""
    send(messages(topic, 20))
    archive(place, broker.nameserver_address, topic, format=Format(rows_max=5), join=False)
    send(messages(topic, 20, first=20))
    times: list[int] = []

    def beside(works: Sequence[Any]) -> list[Any]:
        done = here(works)
        times.append(len(works))
        if len(times) == 1:
            assert archive(place, broker.nameserver_address, topic).rows == 20
        return done

    monkeypatch.setattr(upkeep, "on_threads", beside)
    assert upkeep.compact(IcebergArchive(NAME, place), older_than_ms=EVERYTHING) >= 4
    assert len(times) == 2
    assert bodies(place) == once(40)
    assert files_of(place) == named(place)


def test_a_commit_whose_answer_is_lost_and_whose_snapshot_is_forgotten(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells any more that it came to be, but the offsets: its files are the table's, and stay."""
    from pyiceberg.catalog.sql import SqlCatalog

    send(messages(topic, 20))
    usual = SqlCatalog.commit_table
    lost: list[int] = []

    def commit(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
        answer = usual(self, table, requirements, updates)
        if "archive.offsets" in repr(updates) and not lost:
            lost.append(1)
            other = IcebergTable(place, NAME)
            other.load()
            other.append((), lambda: {"other": "1"})
            assert other.expire_snapshots(2**62)
            raise ConnectionError("the answer is lost")
        return answer

    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    with pytest.raises(OthersCameFirst):
        archive(place, broker.nameserver_address, topic)
    assert lost
    assert bodies(place) == once(20)
    assert archive(place, broker.nameserver_address, topic).rows == 0
    assert files_of(place) == named(place)


@pytest.mark.parametrize("kind", archiving.KINDS)
def test_on_disk_it_is_refused_while_a_run_archives(
    kind: str, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    sent = sent_messages(topic, 20)
    send(sent)
    storage = LocalFolder(tmp_path / "archive")

    def run(works: Sequence[Any]) -> list[Any]:
        done = here(works)
        for work in (
            lambda: upkeep.compact(storage, older_than_ms=EVERYTHING),
            lambda: upkeep.expire(storage, keep_ms=EVERYTHING),
        ):
            with pytest.raises(KeroloxError, match=r"another run archives to .* Wait until it ends"):
                work()
        return done

    assert archiving.archive(storage, broker.nameserver_address, topic, kind=kind, run=run).rows == 20
    assert archiving.bodies(storage, kind) == expected(*sent)


def test_a_run_that_had_nothing_to_do_while_its_snapshot_was_forgotten(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    """It knows the table of before, whose manifests are gone; the next round begins with the one of now."""
    send(messages(topic, 20))
    wanted = read_wanted({"nameserver": broker.nameserver_address, "topic": topic, "group": "g"}, "batch")
    with Archive(wanted, IcebergArchive(NAME, place), here, join=False) as running:
        assert running.once().rows == 20
        other = IcebergTable(place, NAME)
        other.load()
        other.append((), lambda: {"other": "1"})
        assert other.expire_snapshots(2**62)
        send(messages(topic, 20, first=20))
        assert running.once().rows == 40
    assert bodies(place) == once(40)
    assert files_of(place) == named(place)
