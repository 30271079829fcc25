"""Topics to an Iceberg table: every message once, whatever is killed and whoever else writes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.client.messages import Message, Receipt
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive import upkeep
from kerolox.pipeline.archive.archive import Archive
from kerolox.pipeline.archive.files import Format, WriteTask
from kerolox.pipeline.archive.iceberg import IcebergArchive
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace, IcebergError
from kerolox.pipeline.lake.iceberg_table import IcebergTable
from kerolox.pipeline.lake.upkeep import OthersCameFirst
from kerolox.pipeline.replay.plan import ReplayChoice, ReplayError
from kerolox.pipeline.replay.replay import replay
from kerolox.pipeline.replay.source import find_source
from kerolox.spark.source.options import read_wanted
from kerolox.spark.source.queues import DataLoss
from kerolox.testing.threads import BrokerThread
from tests.spark.source_kit import delete_topic

from .archiving import here
from .iceberg_archiving import NAME, STEPS, archive, bodies, rows, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[Sequence[Message]], list[Receipt]]


@pytest.fixture
def place(tmp_path: Path) -> CatalogPlace:
    return CatalogPlace(f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path / "warehouse"))


def messages(topic: str, count: int, first: int = 0) -> list[Message]:
    return [Message(topic, b"%d" % number, keys=f"k{number}") for number in range(first, first + count)]


def once(count: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(count))


def files_of(place: CatalogPlace) -> set[str]:
    """The Parquet files that lie in the warehouse."""
    return {path.as_uri() for path in Path(place.warehouse).rglob("*.parquet")}


def named(place: CatalogPlace) -> set[str]:
    table = IcebergTable(place, NAME)
    table.load()
    return table.data_files()


def test_every_message_once_with_its_columns(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    send(messages(topic, 100))
    summary = archive(place, broker.nameserver_address, topic, format=Format(rows_max=40), round_rows=60)
    assert (summary.rows, summary.rounds) == (100, 2)
    assert bodies(place) == once(100)
    (row,) = rows(place, row_filter=f"topic = '{topic}' and keys = 'k7'")
    assert (row["topic"], row["body"], dict(row["properties"])["KEYS"]) == (topic, b"7", "k7")
    send(messages(topic, 20, first=100))
    assert archive(place, broker.nameserver_address, topic).rows == 20
    assert bodies(place) == once(120)
    before = len(place.open().load_table(NAME).metadata.snapshots)
    assert archive(place, broker.nameserver_address, topic).rows == 0
    assert len(place.open().load_table(NAME).metadata.snapshots) == before  # nothing new changes nothing
    assert files_of(place) == named(place)


@pytest.mark.parametrize("count", [10, 13])  # as many as were archived, and more
def test_a_topic_made_anew_between_two_runs(
    count: int, place: CatalogPlace, broker: BrokerThread, new_topic: Callable[..., str], send: Send
) -> None:
    topic = new_topic(queues=1)
    send(messages(topic, 10))
    archive(place, broker.nameserver_address, topic)
    delete_topic(broker, topic)
    broker.create_topic(topic, queues=1)
    send(messages(topic, count, 10))
    with pytest.raises(DataLoss, match=f"{topic}/broker-a/0: offset 10 .*deleted and made anew"):
        archive(place, broker.nameserver_address, topic)
    told = archive(place, broker.nameserver_address, topic, options={"failOnDataLoss": "false"})
    assert told.rows == count
    assert archive(place, broker.nameserver_address, topic).rows == 0
    assert bodies(place) == once(10 + count)


@pytest.mark.parametrize(
    "step", [STEPS[3], *(pytest.param(s, marks=pytest.mark.long) for s in STEPS if s != STEPS[3])]
)
def test_a_run_that_is_killed_loses_nothing_and_leaves_nothing(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send, step: str
) -> None:
    kill_story(place, broker, topic, send, step)
    assert files_of(place) == named(place)


def kill_story(place: CatalogPlace, broker: BrokerThread, topic: str, send: Send, step: str) -> None:
    send(messages(topic, 200))
    command = [sys.executable, "-m", "tests.pipeline.iceberg_archiving", step, told(place)]
    killed = subprocess.run(
        [*command, broker.nameserver_address, topic], capture_output=True, text=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    summary = archive(place, broker.nameserver_address, topic)
    assert bodies(place) == once(200)
    assert bool(summary.swept.files) == (step in ("in a task", "behind the files", "before the catalog"))


def test_two_runs_at_once_archive_every_message_once(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    send(messages(topic, 50))
    address = broker.nameserver_address
    two_runs(place, address, topic)
    assert bodies(place) == once(50)
    assert archive(place, address, topic).rows == 0
    assert files_of(place) == named(place)


def two_runs(place: CatalogPlace, address: str, topic: str) -> None:
    """A run has written its files, and another one begins, takes it for killed, and commits."""

    def meanwhile(works: Sequence[WriteTask]) -> list[Any]:
        done = here(works)
        if not seen:
            seen.append(archive(place, address, topic))
        return done

    seen: list[Any] = []
    with pytest.raises(OthersCameFirst, match="took this one for killed"):
        archive(place, address, topic, run=meanwhile)
    assert seen[0].rows == 50


def test_a_run_goes_on_behind_what_another_has_archived(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    """Two that began before either had written anything: neither takes the other for killed."""
    send(messages(topic, 50))
    wanted = read_wanted({"nameserver": broker.nameserver_address, "topic": topic, "group": "g"}, "batch")
    with ExitStack() as both:
        first, second = (
            both.enter_context(Archive(wanted, IcebergArchive(NAME, place), here)) for _ in range(2)
        )
        assert first.once().rows == 50
        with pytest.raises(OthersCameFirst, match="This run continues from there"):
            second.once()
        send(messages(topic, 10, first=50))
        assert second.once().rows == 10
        with pytest.raises(OthersCameFirst):
            first.once()
        assert first.once().rows == 50  # as before
    assert bodies(place) == once(60)
    assert files_of(place) == named(place)


@pytest.mark.parametrize("raises", [True, False])
def test_a_file_whose_task_nobody_heard_of_is_swept_by_the_next_run(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send, raises: bool
) -> None:
    """A worker or a JVM was killed behind the writing: the run itself ends in order, or with an error."""
    send(messages(topic, 20))

    def unheard(works: Sequence[WriteTask]) -> list[Any]:
        here(works)
        if raises:
            raise KeroloxError("the JVM is gone")
        return here(works)

    with ExitStack() as stack:
        if raises:
            stack.enter_context(pytest.raises(KeroloxError, match="the JVM is gone"))
        archive(place, broker.nameserver_address, topic, run=unheard)
    assert files_of(place) > (named(place))
    assert archive(place, broker.nameserver_address, topic).swept.files
    assert bodies(place) == once(20)
    assert files_of(place) == named(place)


def test_runs_of_different_topics_share_a_table(
    place: CatalogPlace, broker: BrokerThread, new_topic: Callable[..., str], send: Send
) -> None:
    one, two = new_topic(), new_topic()
    send(messages(one, 10) + messages(two, 10, first=10))

    def meanwhile(works: Sequence[WriteTask]) -> list[Any]:
        done = here(works)
        other.once()
        return done

    wanted = read_wanted({"nameserver": broker.nameserver_address, "topic": two, "group": "g"}, "batch")
    with Archive(wanted, IcebergArchive(NAME, place), here) as other:
        # The other one was opened before: its note is taken for a killed run's, and it has no files yet.
        archive(place, broker.nameserver_address, one, run=meanwhile)
    assert bodies(place) == once(20)
    assert archive(place, broker.nameserver_address, one, two).rows == 0


def test_small_files_are_joined_and_nothing_else_changes(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    send(messages(topic, 100))
    archive(place, broker.nameserver_address, topic, format=Format(rows_max=10), join=False)
    assert len(list(place.open().load_table(NAME).scan().plan_files())) >= 10
    summary = archive(place, broker.nameserver_address, topic, clock=_Later())
    assert summary.files_joined >= 8
    assert len(list(place.open().load_table(NAME).scan().plan_files())) == 1
    assert bodies(place) == once(100)
    send(messages(topic, 5, first=100))
    assert archive(place, broker.nameserver_address, topic).rows == 5  # the offsets are still known
    assert bodies(place) == once(105)


class _Later:
    """The hours of all messages are over."""

    def wall_ms(self) -> int:
        from kerolox.clock import SYSTEM_CLOCK

        return SYSTEM_CLOCK.wall_ms() + 7_200_000


def test_old_hours_go_with_their_files_and_are_not_archived_again(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    send(messages(topic, 20))
    archive(place, broker.nameserver_address, topic, format=Format(rows_max=5), join=False)
    there = files_of(place)
    assert upkeep.expire(IcebergArchive(NAME, place), keep_ms=3_600_000).files == 0
    stray = next(iter(Path(place.warehouse).rglob("kerolox-*"))).with_name("kerolox-1-gone") / "a.parquet"
    stray.parent.mkdir()
    stray.write_bytes(b"of a run that ended")
    done = upkeep.expire(IcebergArchive(NAME, place), keep_ms=-7_200_000)
    assert (done.files, done.rows, done.orphans) == (len(there), 20, 1)
    assert files_of(place) == named(place) == set()
    assert len(place.open().load_table(NAME).metadata.snapshots) == 1
    assert archive(place, broker.nameserver_address, topic).rows == 0  # the offsets outlive the snapshots
    send(messages(topic, 5, first=20))
    assert archive(place, broker.nameserver_address, topic, expire_ms=3_600_000).rows == 5
    assert sorted(map(int, bodies(place))) == list(range(20, 25))
    assert files_of(place) == named(place)


def test_snapshots_stay_as_long_as_the_table_says(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    """Who began to read before goes on; who asks now sees nothing of the old hours."""
    send(messages(topic, 5))
    archive(place, broker.nameserver_address, topic)
    before = place.open().load_table(NAME)
    table = IcebergTable(place, NAME)
    table.load()
    assert table.expire_snapshots(before.metadata.snapshots[0].timestamp_ms) == 0
    assert table.remove([each.file for each in before.scan().plan_files()])
    assert rows(place) == []
    assert before.scan().to_arrow().num_rows == 5
    assert table.expire_snapshots(2**62) >= 3  # a file of messages, its manifest, and the list of those
    assert files_of(place) == set()
    assert rows(place) == []


def test_the_commands_take_a_table(place: CatalogPlace, broker: BrokerThread, topic: str, send: Send) -> None:
    send(messages(topic, 20))
    archive(place, broker.nameserver_address, topic, format=Format(rows_max=5), join=False)
    count = len(named(place))
    table = ["--iceberg", NAME, "--catalog-uri", place.uri, "--warehouse", place.warehouse, "--json"]
    done = CliRunner().invoke(app, ["pipeline", "expire", "--keep", "30d", *table])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"] == 0
    assert upkeep.compact(IcebergArchive(NAME, place), older_than_ms=-7_200_000) == count
    done = CliRunner().invoke(app, ["pipeline", "compact", *table])
    assert (done.exit_code, json.loads(done.stdout)["filesJoined"]) == (0, 0)
    assert bodies(place) == once(20)
    for words, said in (
        (["pipeline", "compact"], "--iceberg NAMESPACE.TABLE"),
        (["pipeline", "compact", "/somewhere", *table], "--iceberg NAMESPACE.TABLE"),
        (["pipeline", "compact", "/somewhere", "--catalog", "x"], "--iceberg NAMESPACE.TABLE"),
        (["pipeline", "expire", "--keep", "30d", "--iceberg", "lake.none", *table[2:]], "an archive"),
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 1
        assert said in done.output


def test_what_does_not_fit_is_refused(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    address = broker.nameserver_address
    with pytest.raises(OptionError, match="finds other columns by its statistics"):
        archive(place, address, topic, format=Format(partitions=("topic", "date", "hour", "tag")))
    send(messages(topic, 1))
    archive(place, address, topic)
    with pytest.raises(
        IcebergError,
        match="column properties of the table is map<string, string>, and the new rows have string",
    ):
        archive(place, address, topic, format=Format(properties="string"))
    with pytest.raises(OptionError, match="topic,date,hour, as when this table was created"):
        archive(place, address, topic, format=Format(partitions=("topic", "date")))
    with pytest.raises(KeroloxError, match="cannot be opened"):
        archive(CatalogPlace("sqlite:////nowhere/at/all.db", warehouse=str(tmp_path)), address, topic)


@pytest.mark.long
def test_a_replay_reads_the_current_snapshot(
    place: CatalogPlace, broker: BrokerThread, new_topic: Callable[..., str], send: Send, spark: SparkSession,
    tmp_path: Path,
) -> None:  # fmt: skip
    topic, copy = new_topic(), new_topic()
    send(messages(topic, 30))
    archive(place, broker.nameserver_address, topic, format=Format(rows_max=10))
    with pytest.raises(ReplayError, match=r"the table lake\.nothing .* does not exist"):
        find_source("iceberg:lake.nothing", catalog=place)
    told = replay(
        spark, f"iceberg:{NAME}", broker.nameserver_address, choice=ReplayChoice(to_topic=copy),
        state=tmp_path / "replays", catalog=place,
    )  # fmt: skip
    assert (told.planned, told.sent) == (30, 30)
    archive(place, broker.nameserver_address, copy)
    assert bodies(place) == once(30) + once(30)
