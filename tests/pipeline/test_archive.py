"""Archives: what was sent is there once, whatever happened on the way."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kerolox.client.messages import Message, Queue, Receipt
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive import files as archive_files
from kerolox.pipeline.archive import folders as archive_folders
from kerolox.pipeline.archive import log as archive_log
from kerolox.pipeline.archive.archive import Archive, bins
from kerolox.pipeline.archive.files import Format, WriteTask, write
from kerolox.pipeline.archive.folders import NO_VALUE, folder_of
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.archive.tasks import ArchiveFailed
from kerolox.pipeline.lake import upkeep
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.parquet_table import TableDamaged
from kerolox.pipeline.lake.table_file import TableFileWriter
from kerolox.pipeline.lake.upkeep import JoinTask, TaskResult
from kerolox.spark.source.options import read_wanted
from kerolox.spark.source.queues import DataLoss
from kerolox.spark.source.ranges import Range
from kerolox.testing.threads import BrokerThread
from tests.spark.source_kit import delete_topic

from .archiving import KINDS, STEPS, archive, bodies, here, rows

Send = Callable[[Sequence[Message]], list[Receipt]]
ROOT = Path(__file__).parents[2]


def messages(topic: str, count: int, first: int = 0) -> list[Message]:
    return [
        Message(
            topic,
            f"{topic} {number}",
            tags=f"t{number % 3}",
            keys=f"k{number}",
            properties={"n": str(number)},
        )
        for number in range(first, first + count)
    ]


def expected(*sent: Message) -> Counter[bytes]:
    return Counter(message.body_bytes() for message in sent)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_sent_is_there_by_topic_and_hour(
    kind: str, broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    first, second = new_topic(), new_topic(queues=1)
    sent = messages(first, 200) + messages(second, 30)
    receipts = {receipt.msg_id: receipt for receipt in send(sent)}
    told = archive(tmp_path / "a", broker.nameserver_address, first, second, kind=kind)
    assert {name: topic.rows for name, topic in told.topics.items()} == {first: 200, second: 30}
    assert (told.missing, told.rounds) == (0, 1)
    assert told.files in (2, 3, 4)  # two of a topic when the hour changes meanwhile
    found = rows(tmp_path / "a", kind)
    assert Counter(row["body"] for row in found) == expected(*sent)
    for row in found:
        receipt = receipts[row["msg_id"]]
        assert Queue(row["topic"], row["broker"], row["queue_id"]) == receipt.queue
        assert (row["queue_offset"], row["offset_msg_id"]) == (receipt.queue_offset, receipt.offset_msg_id)
        number = row["body"].split()[-1].decode()
        assert (row["keys"], row["tags"]) == (f"k{number}", f"t{int(number) % 3}")
        assert dict(row["properties"])["n"] == number
        stored = row["store_timestamp"]
        assert str(row["date"]) == stored.strftime("%Y-%m-%d")
        assert row["hour"] == stored.hour
    files = list((tmp_path / "a").glob("topic=*/date=*/hour=*/*.parquet"))
    assert len(files) == told.files


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_changes_nothing_and_a_third_adds_what_is_new(
    kind: str, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    sent = messages(topic, 50)
    send(sent)
    archive(tmp_path, broker.nameserver_address, topic, kind=kind)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    told = archive(tmp_path, broker.nameserver_address, topic, kind=kind)
    assert (told.rows, told.rounds) == (0, 0)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {p for p in after if after[p] != before.get(p)} <= {tmp_path / "_kerolox" / "lock"}
    more = messages(topic, 20, 50)
    send(more)
    assert archive(tmp_path, broker.nameserver_address, topic, kind=kind).rows == 20
    assert bodies(tmp_path, kind) == expected(*sent, *more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_killed_goes_on(
    step: str, kind: str, broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    """SIGKILL at every step: no reader ever sees a message twice, and in the end all are there."""
    first, second = new_topic(), new_topic(queues=2)
    sent = messages(first, 160) + messages(second, 60)
    send(sent)
    command = [sys.executable, "-m", "tests.pipeline.archiving", step, kind, str(tmp_path), "{}"]
    command += [broker.nameserver_address, first, second]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert killed.returncode == -9, killed.stderr
    # A Parquet archive moves its files after the commit, a Delta table before it.
    moves = ("between the moves", "behind the moves") if kind == "parquet" else ()
    committed = step in ("after the commit", *moves, "before the report")
    before = parquet_files(tmp_path)
    if kind == "delta" or (tmp_path / f"topic={first}").exists():
        seen = bodies(tmp_path, kind)
        assert max(seen.values(), default=1) == 1
        assert bool(seen) == committed
    again = archive(tmp_path, broker.nameserver_address, first, second, kind=kind)
    assert again.rows == (220 - 150 if committed else 220)
    assert bodies(tmp_path, kind) == expected(*sent)
    # Nothing is left of it but what counts, and what was removed is told.
    assert parquet_files(tmp_path) == named(tmp_path, kind)
    left = before - named(tmp_path, kind) if not committed else set()
    assert again.swept.files == len(left)
    assert bool(again.swept.bytes) == bool(left)
    assert bool(left) == (not committed)
    assert progress(broker, first) == ends(broker, first)


def parquet_files(to: Path) -> set[str]:
    """All there are below a folder, readers' or not."""
    return {str(path.relative_to(to)) for path in to.rglob("*.parquet")}


def named(to: Path, kind: str) -> set[str]:
    """Those that a commit names."""
    if kind == "parquet":
        return set(ParquetArchive(to).files())
    from deltalake import DeltaTable

    return {str(Path(uri).relative_to(to)) for uri in DeltaTable(to).file_uris()}


def test_files_of_a_run_under_way_are_left_alone(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(messages(topic, 20))

    def meanwhile(works: Sequence[Any]) -> list[TaskResult]:
        done = here(works)
        with pytest.raises(KeroloxError, match="another run"):
            archive(tmp_path, broker.nameserver_address, topic)
        assert all((tmp_path / file.staged).exists() for each in done for file in each.files)
        return done

    told = archive(tmp_path, broker.nameserver_address, topic, run=meanwhile)
    assert (told.rows, told.swept.files) == (20, 0)


def progress(broker: BrokerThread, topic: str) -> dict[Queue, int]:
    with SocketCluster(broker.nameserver_address) as cluster:
        return cluster.all_committed(cluster.route(topic).readable, "archive")


def ends(broker: BrokerThread, topic: str) -> dict[Queue, int]:
    with SocketCluster(broker.nameserver_address) as cluster:
        return {queue: edge.end for queue, edge in cluster.edges(cluster.route(topic).readable).items()}


def test_progress_is_told_to_the_broker(broker: BrokerThread, topic: str, send: Send, tmp_path: Path) -> None:
    send(messages(topic, 40))
    archive(tmp_path, broker.nameserver_address, topic, round_rows=12)
    assert progress(broker, topic) == ends(broker, topic)
    assert sum(progress(broker, topic).values()) == 40


def test_a_commit_tells_what_its_files_cover(
    broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    topic = new_topic(queues=1)
    send(messages(topic, 25))
    archive(tmp_path, broker.nameserver_address, topic, round_rows=10, format=Format(rows_max=4))
    log = ParquetArchive(tmp_path)
    (first, *_) = log.commits()
    (broker_name,) = first.ranges[topic]
    spans = [commit.ranges[topic][broker_name]["0"] for commit in log.commits()]
    assert spans == [(0, 10), (10, 20), (20, 25)]
    assert [commit.offsets[topic][broker_name]["0"] for commit in log.commits()] == [10, 20, 25]
    parts = [(file.parts[0].first, file.parts[0].last, file.rows) for file in log.files().values()]
    assert [last - first + 1 for first, last, _ in parts] == [rows for *_, rows in parts]
    assert sorted(parts) == [
        (0, 2, 3), (3, 5, 3), (6, 9, 4), (10, 12, 3), (13, 15, 3), (16, 19, 4), (20, 21, 2), (22, 24, 3),
    ]  # fmt: skip
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("topic=*/*/*/*")}
    assert there == set(log.files())


def test_columns_stay_as_they_began(broker: BrokerThread, topic: str, send: Send, tmp_path: Path) -> None:
    send(messages(topic, 5))
    archive(tmp_path / "s", broker.nameserver_address, topic, format=Format(properties="string"))
    (row, *_) = rows(tmp_path / "s")
    assert "n\x01" in row["properties"]
    with pytest.raises(OptionError, match="string, as when this archive was created"):
        archive(tmp_path / "s", broker.nameserver_address, topic)
    archive(tmp_path / "n", broker.nameserver_address, topic, format=Format(properties="none"))
    assert "properties" not in rows(tmp_path / "n")[0]
    (file, *_) = (tmp_path / "n").glob("topic=*/*/*/*.parquet")
    assert pq.read_schema(file).names == Format(properties="none").schema().names


def test_an_archive_has_a_folder_of_its_own(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(messages(topic, 5))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(OptionError, match="empty or does not exist"):
        archive(tmp_path / "other", broker.nameserver_address, topic)
    archive(tmp_path / "p", broker.nameserver_address, topic)
    with pytest.raises(OptionError, match="no --delta"):
        archive(tmp_path / "p", broker.nameserver_address, topic, kind="delta")
    archive(tmp_path / "d", broker.nameserver_address, topic, kind="delta")
    with pytest.raises(OptionError, match="--delta with it"):
        archive(tmp_path / "d", broker.nameserver_address, topic)


@pytest.mark.parametrize("kind", KINDS)
def test_one_writer_at_a_time(
    kind: str, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(messages(topic, 5))

    def meanwhile(works: Sequence[WriteTask | JoinTask]) -> list[TaskResult]:
        with pytest.raises(KeroloxError, match="another run archives to"):
            archive(tmp_path, broker.nameserver_address, topic, kind=kind)
        return here(works)

    assert archive(tmp_path, broker.nameserver_address, topic, kind=kind, run=meanwhile).rows == 5


def test_a_commit_that_another_made_is_not_overwritten(tmp_path: Path) -> None:
    """Where locks do not work (some network file systems) the number of a commit still has one owner."""
    one, other = ParquetArchive(tmp_path), ParquetArchive(tmp_path)
    one.open(Format())
    one.commit("g", {}, {}, [])
    other.number = 0
    with pytest.raises(KeroloxError, match=r"another run has written .* meanwhile"):
        other.commit("g", {}, {}, [])
    assert one.numbers() == [1]
    one.close()


def test_a_round_that_fails_leaves_nothing(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(messages(topic, 30))

    def one_fails(works: Sequence[WriteTask | JoinTask]) -> list[TaskResult]:
        done = here(works)
        done.append(TaskResult(error="the disk is full"))
        return done

    with pytest.raises(ArchiveFailed, match="the disk is full"):
        archive(tmp_path, broker.nameserver_address, topic, run=one_fails)
    assert list(tmp_path.rglob("*.parquet")) == []
    assert archive(tmp_path, broker.nameserver_address, topic).rows == 30


def test_a_task_that_fails_says_why_and_cleans_up(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(messages(topic, 30))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TableFileWriter, "flush", full)
    with pytest.raises(ArchiveFailed, match="No space left"):
        archive(tmp_path, broker.nameserver_address, topic)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_tries_of_a_task_do_not_meet(broker: BrokerThread, topic: str, send: Send, tmp_path: Path) -> None:
    """A task that is tried twice writes twice; only the one that answered counts."""
    sent = messages(topic, 30)
    send(sent)

    def twice(works: Sequence[WriteTask | JoinTask]) -> list[TaskResult]:
        here(works)
        return here(works)

    archive(tmp_path, broker.nameserver_address, topic, run=twice)
    assert bodies(tmp_path) == expected(*sent)


def test_a_file_that_was_deleted_is_told(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(messages(topic, 5))
    archive(tmp_path, broker.nameserver_address, topic)
    for path in tmp_path.glob("topic=*/*/*/*.parquet"):
        path.unlink()
    with pytest.raises(TableDamaged, match="Was it deleted"):
        archive(tmp_path, broker.nameserver_address, topic)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_are_gone(
    kind: str, broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    """As with the source: an error, or the loss is counted and the archive goes on."""
    topic = new_topic(queues=1)
    send(messages(topic, 10))
    archive(tmp_path, broker.nameserver_address, topic, kind=kind)
    (queue,) = ends(broker, topic)
    # A topic made again begins at 0: the archive is ahead of it.
    wiser = KINDS[kind](tmp_path)
    wiser.open(Format())
    wiser.commit("archive", {}, {queue: 25}, [])
    wiser.close()
    with pytest.raises(DataLoss, match="offset 25 was to be read next, but it ends at 10"):
        archive(tmp_path, broker.nameserver_address, topic, kind=kind)
    told = archive(tmp_path, broker.nameserver_address, topic, kind=kind, options={"failOnDataLoss": "false"})
    assert told.rows == 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [10, 13])  # as many as were archived, and more
def test_a_topic_made_anew_between_two_runs(
    count: int, kind: str, broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    """Its first messages are not passed over: an error, or the archive reads it from its beginning."""
    topic = new_topic(queues=1)
    former = messages(topic, 10)
    send(former)
    archive(tmp_path, broker.nameserver_address, topic, kind=kind)
    delete_topic(broker, topic)
    broker.create_topic(topic, queues=1)
    anew = messages(topic, count, 100)
    send(anew)
    with pytest.raises(DataLoss, match=f"{topic}/broker-a/0: offset 10 .*deleted and made anew.*archive"):
        archive(tmp_path, broker.nameserver_address, topic, kind=kind)
    told = archive(tmp_path, broker.nameserver_address, topic, kind=kind, options={"failOnDataLoss": "false"})
    assert told.rows == count
    assert archive(tmp_path, broker.nameserver_address, topic, kind=kind).rows == 0
    assert bodies(tmp_path, kind) == expected(*former, *anew)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_without_last_messages_goes_on_and_learns_them(
    kind: str, broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    """Versions before did not keep them."""
    topic = new_topic(queues=1)
    send(messages(topic, 10))
    (queue,) = ends(broker, topic)
    older = KINDS[kind](tmp_path)
    older.open(Format())
    older.commit("archive", {}, {queue: 4}, [])
    older.close()
    assert archive(tmp_path, broker.nameserver_address, topic, kind=kind).rows == 6
    newer = KINDS[kind](tmp_path)
    newer.open(Format())
    newer.find_places([queue])
    newer.close()
    assert (newer.places[queue], newer.last_read[queue].queue_offset) == (10, 9)


def test_hours_and_full_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of many hours, in any order, with more hours than files may be open."""
    schema = Format(rows_max=5).schema()
    hour_us = archive_folders.HOUR_US
    times = [(number * 7 % 10) * hour_us + number for number in range(60)]
    columns = {name: pa.nulls(60, schema.field(name).type) for name in schema.names}
    columns["queue_offset"] = pa.array(range(60), pa.int64())
    columns["store_timestamp"] = pa.array(times, pa.int64()).view(schema.field("store_timestamp").type)
    batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    monkeypatch.setattr(archive_files, "OPEN_FILES", 4)
    monkeypatch.setattr(archive_files, "BUFFERED_BYTES", 1000)
    work = WriteTask("t", (), None, LocalFolder(tmp_path), "_s", "x", Format(rows_max=5))  # type: ignore[arg-type]
    files = archive_files.HourFiles(work)
    files.add(Queue("t", "b", 0), batch.slice(0, 33))
    files.add(Queue("t", "b", 1), batch.slice(33))
    written = files.close()
    assert sum(file.rows for file in written) == 60
    assert max(file.rows for file in written) <= 5
    found = []
    for file in written:
        table = pq.read_table(tmp_path / file.staged)
        assert {at.hour for at in table["store_timestamp"].to_pylist()} == {file.hour}
        assert sum(part.rows for part in file.parts) == file.rows == table.num_rows
        assert file.path.startswith(folder_of("t", "1970-01-01", file.hour))
        found += table["queue_offset"].to_pylist()
    assert sorted(found) == list(range(60))
    assert len({file.path for file in written}) == len(written)


BY_CHOICE = Format(partitions=("topic", "date", "tag", "property.region"))
REGIONS = ("north", "a/b = ü %", "007", None, "x" * 201)


@pytest.mark.parametrize("properties", ["map", "string"])
@pytest.mark.parametrize("kind", KINDS)
def test_folders_of_choice(
    kind: str, properties: str, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    """What folders tell is what the messages say; no message is lost by a value that no folder can have."""

    def some(first: int, count: int) -> list[Message]:
        return [
            Message(
                topic, str(number), tags=("paid", "", "new")[number % 3],
                properties={"region": region} if (region := REGIONS[number % 5]) else {},
            )
            for number in range(first, first + count)
        ]  # fmt: skip

    format = replace(BY_CHOICE, properties=properties)
    sent = some(0, 60)
    send(sent)
    told = archive(tmp_path, broker.nameserver_address, topic, kind=kind, format=format)
    assert (told.rows, told.files) == (60, 12)  # two of the five regions are none to a folder
    more = some(60, 15)
    send(more)
    archive(tmp_path, broker.nameserver_address, topic, kind=kind, format=Format(properties=properties))
    assert bodies(tmp_path, kind) == expected(*sent, *more)
    found = rows(tmp_path, kind) if kind == "delta" else of_files(tmp_path)
    for row in found:
        region = REGIONS[int(row["body"]) % 5]
        assert row["region"] == (region if region and len(region) < 200 else None)
        assert row["tag"] == row["tags"] == ("paid", None, "new")[int(row["body"]) % 3]
        assert "hour" not in row
    names = {path.parent.name for path in tmp_path.glob("topic=*/*/*/*/*.parquet")}
    assert names == {"region=north", "region=a%2Fb%20%3D%20%C3%BC%20%25", "region=007", f"region={NO_VALUE}"}
    for other in (("topic", "date", "hour"), ("topic", "date", "tag")):
        with pytest.raises(
            OptionError, match=r"topic,date,tag,property\.region, as when this archive was created"
        ):
            archive(tmp_path, broker.nameserver_address, topic, kind=kind, format=Format(partitions=other))


def of_files(to: Path) -> list[dict[str, Any]]:
    """All rows, with what folders tell as text."""
    found = []
    for path in to.glob("topic=*/**/*.parquet"):
        pairs = (part.split("=", 1) for part in path.relative_to(to).parts[:-1])
        told = {name: None if value == NO_VALUE else unquote(value) for name, value in pairs}
        found += [{**row, **told} for row in pq.read_table(path, partitioning=None).to_pylist()]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_keeps_the_folders_it_began_with(
    kind: str, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(messages(topic, 5))
    archive(tmp_path, broker.nameserver_address, topic, kind=kind)
    if kind == "parquet":  # as older versions wrote it
        head = tmp_path / "_kerolox" / "archive.json"
        older = json.loads(head.read_text())
        assert older.pop("partitions") == ["topic", "date", "hour"]
        head.write_text(json.dumps(older))
    with pytest.raises(OptionError, match="topic,date,hour, as when this archive was created"):
        archive(tmp_path, broker.nameserver_address, topic, kind=kind, format=BY_CHOICE)
    send(messages(topic, 5))
    hours = Format(partitions=("topic", "date", "hour"))
    assert archive(tmp_path, broker.nameserver_address, topic, kind=kind, format=hours).rows == 5


def test_small_files_of_a_day_and_a_tag_are_joined(
    broker: BrokerThread, new_topic: Callable[..., str], tmp_path: Path, send: Send,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    topic = new_topic(queues=1)
    monkeypatch.setattr(upkeep, "FILES_MIN", 3)
    sent = []
    for turn in range(4):
        part = [Message(topic, f"{turn}{tag}", tags=tag) for tag in "ab"]
        send(part)
        sent += part
        archive(
            tmp_path,
            broker.nameserver_address,
            topic,
            format=replace(BY_CHOICE, partitions=BY_CHOICE.partitions[:3]),
        )
    assert len(parquet_files(tmp_path)) == 8
    monkeypatch.setattr(upkeep, "OVER_FOR_MS", -2 * 86_400_000)  # the day is over
    archive(tmp_path, broker.nameserver_address, topic)
    assert len(parquet_files(tmp_path)) == 2
    assert bodies(tmp_path) == expected(*sent)
    assert {(row["tag"], row["tags"]) for row in of_files(tmp_path)} == {("a", "a"), ("b", "b")}


def test_a_property_of_many_values_is_refused(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "FOLDERS_MAX", 20)
    send([Message(topic, b"x", properties={"region": str(number)}) for number in range(21)])
    with pytest.raises(ArchiveFailed, match="more than 20 folders"):
        archive(tmp_path, broker.nameserver_address, topic, format=BY_CHOICE)
    assert parquet_files(tmp_path) == set()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("date,topic", "topic,date"), ("topic", "topic,date"), ("topic,date,tag,hour", "tag, or property"),
        ("topic,date,region", "property.NAME"), ("topic,date,property.a b", "letters"),
        ("topic,date,property.body", "another property"), ("topic,date,tag,tag", "only once"),
        ("topic,date,property.Tags", "another property"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be(given: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Format(partitions=tuple(given.split(",")))


def test_topics_in_paths() -> None:
    assert folder_of("%RETRY%a|b", "2026-11-16", 3) == "topic=%25RETRY%25a%7Cb/date=2026-11-16/hour=03"


def test_names_that_need_escaping(broker: BrokerThread, send: Send, tmp_path: Path) -> None:
    topic = f"%RETRY%g{os.getpid()}"
    broker.create_topic(topic)
    send(messages(topic, 4))
    for kind in KINDS:
        archive(tmp_path / kind, broker.nameserver_address, topic, kind=kind)
        assert {row["topic"] for row in rows(tmp_path / kind, kind)} == {topic}


@pytest.mark.parametrize(("count", "tasks"), [(1, 1), (3, 3), (100, 10), (10, 10)])
def test_bins(count: int, tasks: int) -> None:
    wanted = [Range(Queue("t", "b", number), 5, 5 + size) for number, size in enumerate((4, 1, 5))]
    parts = bins(wanted, count)
    assert len(parts) == tasks
    joined = [(r.queue.queue_id, at) for part in parts for r in part for at in range(r.start, r.end)]
    assert joined == [(r.queue.queue_id, at) for r in wanted for at in range(r.start, r.end)]
    sizes = [sum(each.count for each in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_following(broker: BrokerThread, topic: str, send: Send, tmp_path: Path) -> None:
    """Commits come when it is time; full rounds come at once."""
    options = {"nameserver": broker.nameserver_address, "topic": topic, "group": "archive"}
    sent = messages(topic, 10)
    send(sent)
    steps = iter([lambda: send(messages(topic, 30, 10)), lambda: send(messages(topic, 3, 40)), None])

    def stopped(seconds: float) -> bool:
        step = next(steps)
        return step is None or not step()

    with Archive(read_wanted(options, "batch"), ParquetArchive(tmp_path), here, round_rows=20) as made:
        told = made.follow(stopped, interval_s=3600)
    # The first at once; 20 of 30 because a round is full; the others would come an hour later.
    assert told.rows == 30
    assert bodies(tmp_path).total() == 30


@pytest.mark.parametrize("kind", KINDS)
def test_a_begin_at_the_latest_is_written_down(
    kind: str, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    """What comes between two looks, or two runs, is not passed over."""
    latest = {"kind": kind, "options": {"startingOffsets": "latest"}}
    send(messages(topic, 10))
    assert archive(tmp_path, broker.nameserver_address, topic, **latest).rows == 0
    more = messages(topic, 7, 10)
    send(more)
    assert archive(tmp_path, broker.nameserver_address, topic, **latest).rows == 7
    assert bodies(tmp_path, kind) == expected(*more)


def test_following_waits_for_servers_that_are_away(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(messages(topic, 10))
    options = {"nameserver": broker.nameserver_address, "topic": topic, "group": "archive"}
    answers = iter([TaskResult(error="no broker", retriable=True), None, TaskResult(error="broken")])
    pauses: list[float] = []

    def sometimes(works: Sequence[WriteTask | JoinTask]) -> list[TaskResult]:
        answer = next(answers)
        return here(works) if answer is None else [answer]

    def stopped(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 2:
            send(messages(topic, 10, 10))
        return len(pauses) > 9

    with Archive(read_wanted(options, "batch"), ParquetArchive(tmp_path), sometimes, round_rows=10) as made:
        with pytest.raises(ArchiveFailed, match="broken"):
            made.follow(stopped, interval_s=0.1)
        assert made.told().rows == 10
    assert pauses == [2.0, 0.1]


def test_a_broker_that_is_not_there_is_told(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send(messages(topic, 5))
    before = ParquetArchive(tmp_path)
    before.open(Format())
    before.commit("archive", {}, {Queue(topic, "gone", 0): 7}, [])
    before.close()
    told = archive(tmp_path, broker.nameserver_address, topic)
    assert (told.rows, told.unreachable) == (5, [f"{topic}/gone/0"])
    last = ParquetArchive(tmp_path).last()
    assert last is not None
    assert last.offsets[topic]["gone"] == {"0": 7}  # where to go on when it comes back


def test_bad_settings() -> None:
    for bad in ({"properties": "json"}, {"compression": "brotli?"}, {"rows_max": 0}):
        with pytest.raises(OptionError):
            Format(**bad)  # type: ignore[arg-type]


def test_work_travels() -> None:
    wanted = read_wanted({"nameserver": "h:1", "topic": "t"}, "batch")
    work = WriteTask("t", (Range(Queue("t", "b", 0), 0, 9),), wanted, LocalFolder("/a"), "_s", "x", Format())
    assert pickle.loads(pickle.dumps(work)) == work
    assert write.__module__ == "kerolox.pipeline.archive.files"


# --- joining ----------------------------------------------------------------------------------------


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """This hour counts as over."""
    monkeypatch.setattr(upkeep, "OVER_FOR_MS", -3_600_000)


def many_small_files(broker: BrokerThread, topic: str, send: Send, to: Path, kind: str) -> list[Message]:
    sent = messages(topic, 40)
    for first in range(0, 40, 4):
        send(sent[first : first + 4])
        archive(to, broker.nameserver_address, topic, kind=kind, join=False)
    return sent


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_are_joined_when_their_hour_is_over(
    kind: str, broker: BrokerThread, topic: str, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = many_small_files(broker, topic, send, tmp_path, kind)
    assert archive(tmp_path, broker.nameserver_address, topic, kind=kind).files_joined == 0  # not over yet
    before = rows(tmp_path, kind)
    monkeypatch.setattr(upkeep, "OVER_FOR_MS", -3_600_000)
    told = archive(tmp_path, broker.nameserver_address, topic, kind=kind)
    assert told.files_joined >= 8
    assert archive(tmp_path, broker.nameserver_address, topic, kind=kind).files_joined == 0
    assert bodies(tmp_path, kind) == expected(*sent)

    def place(row: dict[str, object]) -> str:
        return f"{row['queue_id']} {row['queue_offset']}"

    assert sorted(rows(tmp_path, kind), key=place) == sorted(before, key=place)
    more = messages(topic, 5, 40)
    send(more)
    assert archive(tmp_path, broker.nameserver_address, topic, kind=kind).rows == 5
    assert bodies(tmp_path, kind) == expected(*sent, *more)


@pytest.mark.usefixtures("old")
def test_a_joined_file_tells_what_it_covers(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_small_files(broker, topic, send, tmp_path, "parquet")
    archive(tmp_path, broker.nameserver_address, topic)
    monkeypatch.setattr(archive_log, "SAVE_EVERY", 3)
    archive(tmp_path, broker.nameserver_address, topic)
    log = ParquetArchive(tmp_path)
    files = log.files()
    assert log._saved() == 11  # ten commits, and the one that joined
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("topic=*/*/*/*")} == set(files)
    assert sum(file.rows for file in files.values()) == 40
    parts = [part for file in files.values() for part in file.parts]
    covered = sorted((part.queue_id, part.first, part.last, part.rows) for part in parts)
    if len(files) == 1:  # unless the hour changed meanwhile
        assert covered == [(queue, 0, 9, 10) for queue in range(4)]


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("where", ["delete", "_move"])
def test_joining_that_was_cut_short(
    where: str, broker: BrokerThread, topic: str, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old files go before the new one comes: at no time is a message there twice."""
    sent = many_small_files(broker, topic, send, tmp_path, "parquet")
    usual = LocalFolder.delete

    def cut_delete(self: LocalFolder, paths: Iterable[str]) -> int:
        some = list(paths)
        if some and some[0].startswith("topic="):
            usual(self, some[:1])
            raise KeyboardInterrupt
        return usual(self, some)

    def cut_move(self: LocalFolder, staged: Path, place: Path) -> bool:
        if staged.exists():
            raise KeyboardInterrupt
        return False

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, where, cut_delete if where == "delete" else cut_move)
        with pytest.raises(KeyboardInterrupt):
            archive(tmp_path, broker.nameserver_address, topic)
        assert max(bodies(tmp_path).values(), default=1) == 1
    last = ParquetArchive(tmp_path).last()
    assert last is not None
    assert len(last.removed) >= 8
    assert (tmp_path / last.files[0].staged).exists()
    archive(tmp_path, broker.nameserver_address, topic)
    assert bodies(tmp_path) == expected(*sent)
