"""Replays: what comes out of a topic's archive or of a broker's files goes into topics again, once."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kerolox.client.errors import NoRoute
from kerolox.client.messages import Message, Queue, Received
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import OptionError
from kerolox.pipeline.archive.archive import Archive
from kerolox.pipeline.archive.delta import DeltaArchive
from kerolox.pipeline.archive.files import Format, write
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.copy_properties import REPLAY_FROM, REPLAY_ID
from kerolox.pipeline.replay import send_task
from kerolox.pipeline.replay.lifeline import DriverEnd, NoLongerWanted, TaskEnd
from kerolox.pipeline.replay.plan import PlanFile, ReplayChoice, ReplayError, SourceQueue, target_of, tasks_of
from kerolox.pipeline.replay.replay import Replayed, parse_map, parse_rate, replay
from kerolox.pipeline.replay.send_task import REPLAY_BORN, SendTask
from kerolox.protocol.reserved import TOOLS_GROUP
from kerolox.spark.columns import arrow_schema
from kerolox.spark.source.options import read_wanted
from kerolox.testing import BrokerThread
from tests.pipeline.replaying import T0, LostAnswers, Quiet, archive, lane_rows, message
from tests.spark.store_maker import StoreMaker, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

numbers = itertools.count(7)


@pytest.fixture
def cluster(broker: BrokerThread) -> Iterator[SocketCluster]:
    with SocketCluster(broker.nameserver_address) as plain:
        yield plain


def read(cluster: SocketCluster, topic: str) -> dict[Queue, list[Received]]:
    found = {}
    for queue in sorted(cluster.route(topic, fresh=True).readable):
        end = cluster.max_offset(queue)
        found[queue] = list(cluster.read(queue, cluster.min_offset(queue), end, group=TOOLS_GROUP))
    return found


def bodies(cluster: SocketCluster, topic: str) -> list[str]:
    return [each.text for part in read(cluster, topic).values() for each in part]


@pytest.fixture
def play(spark: SparkSession, broker: BrokerThread, tmp_path: Path) -> Callable[..., Replayed]:
    def run(source: str, id: str = "", **how: Any) -> Replayed:
        choice = ReplayChoice(
            **{name: how.pop(name) for name in list(how) if name in ReplayChoice.__struct_fields__}
        )
        state = tmp_path / "state"
        return replay(spark, source, broker.nameserver_address, id=id, state=state, choice=choice, **how)

    return run


# --- archives ---------------------------------------------------------------------------------------


def test_an_archive_goes_into_a_topic_in_order(
    play: Callable[..., Replayed], new_topic: Callable[..., str], cluster: SocketCluster, tmp_path: Path
) -> None:
    rows = [message(queue, offset) for queue in range(3) for offset in range(100, 350)]
    topic = new_topic(queues=4)
    done: list[int] = []
    result = play(archive(tmp_path / "a", rows), "first", to_topic=topic, on_progress=done.append)
    assert (result.is_complete, result.sent, result.before, result.planned) == (True, 750, 0, 750)
    assert done[-1] == 750
    found = read(cluster, topic)
    assert sorted(len(part) for part in found.values()) == [0, 250, 250, 250]
    for part in found.values():
        assert [each.properties[REPLAY_FROM] for each in part] == [
            f"orders/broker-x/{part[0].queue.queue_id}/{offset}" for offset in range(100, 100 + len(part))
        ]
    copy = next(part for part in found.values() if part)[7]
    assert (copy.body, copy.flag, copy.reconsume_times) == (b"body of orders-0-107", 107, 0)
    assert (copy.keys, copy.tags) == (("k-orders-0-107", "k-all"), "odd")
    own = {name: copy.properties.get(name) for name in ("UNIQ_KEY", "region", REPLAY_ID, REPLAY_BORN)}
    assert own == {
        "UNIQ_KEY": "IDorders-0-107",
        "region": "north",
        REPLAY_ID: "first",
        REPLAY_BORN: str(T0 + 107_000 - 5),
    }
    assert not {"RECONSUME_TIME", "DELAY"} & copy.properties.keys()
    assert copy.properties.get("CLUSTER") != "other"


ROWS = [message(queue, offset) for queue in range(2) for offset in range(10)] + [
    message(0, offset, topic=topic)
    for topic in ("bills", "%RETRY%shop", "SCHEDULE_TOPIC_XXXX")
    for offset in (0, 1)
]


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        ({}, 22),
        ({"topics": ("orders",)}, 20),
        ({"topics": ("%RETRY%shop",)}, 2),
        ({"since_ms": T0 + 8000}, 4),
        ({"until_ms": T0 + 1000}, 3),
        ({"tags": ("even",), "topics": ("orders",)}, 10),
        ({"tags": ("even", "odd")}, 22),
        ({"keys": ("k-orders-1-3", "k-orders-0-3", "nobody")}, 2),
        ({"keys": ("k-all",)}, 22),
        ({"where": "queue_offset % 5 = 0 AND properties['region'] = 'north' AND topic LIKE 'o%'"}, 4),
    ],
)
def test_filters_and_a_dry_run_that_sends_nothing(
    play: Callable[..., Replayed],
    topic: str,
    cluster: SocketCluster,
    tmp_path: Path,
    choice: dict[str, Any],
    count: int,
) -> None:
    result = play(archive(tmp_path / "a", ROWS), "dry", to_topic=topic, dry_run=True, **choice)
    assert (result.planned, result.sent, result.is_complete) == (count, 0, True)
    assert sum(queue["messages"] for queue in result.queues) == count
    assert bodies(cluster, topic) == []
    assert not (tmp_path / "state").exists()


def test_each_topic_to_its_own_and_repeated_messages_once(
    play: Callable[..., Replayed], new_topic: Callable[..., str], cluster: SocketCluster, tmp_path: Path
) -> None:
    orders, bills = new_topic(), new_topic(queues=1)
    source = archive(tmp_path / "a", [*ROWS, *ROWS[:5]])
    where = "tags = 'even' AND topic in ('orders', 'bills')"
    result = play(source, topic_map={"orders": orders, "bills": bills}, where=where)
    assert (result.is_complete, result.sent, result.repeated, result.planned) == (True, 11, 3, 11)
    assert Counter(bodies(cluster, orders)) == Counter(
        f"body of orders-{queue}-{offset}" for queue in (0, 1) for offset in range(0, 10, 2)
    )
    assert bodies(cluster, bills) == ["body of bills-0-0"]


def test_what_cannot_be_replayed_is_said(play: Callable[..., Replayed], topic: str, tmp_path: Path) -> None:
    source = archive(tmp_path / "a", ROWS)
    with pytest.raises(OptionError, match=r"--where.*colour"):
        play(source, to_topic=topic, where="colour = 1")
    with pytest.raises(OptionError, match="--where"):
        play(source, to_topic=topic, where="tags = = 1")
    with pytest.raises(NoRoute, match="no-such-topic"):
        play(source, to_topic="no-such-topic")
    with pytest.raises(OptionError, match="SOURCE"):
        play(str(tmp_path / "nothing"), to_topic=topic)
    pq.write_table(pa.table({"topic": ["a"], "body": [b""]}), tmp_path / "other.parquet")
    with pytest.raises(ReplayError, match="no column queue_id, queue_offset"):
        play(str(tmp_path / "other.parquet"), to_topic=topic)
    with pytest.raises(OptionError, match="--id"):
        play(source, "../up", to_topic=topic)
    assert not (tmp_path / "state").exists() or not list((tmp_path / "state").rglob("plan.json"))


def test_a_delta_table(
    play: Callable[..., Replayed], topic: str, cluster: SocketCluster, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    folder = str(tmp_path / "d")
    for part in (ROWS[:10], ROWS[10:20]):
        deltalake.write_deltalake(folder, pa.Table.from_pylist(part, arrow_schema()), mode="append")
    deltalake.DeltaTable(folder).delete("queue_offset >= 5")
    assert play(folder, to_topic=topic).sent == 10
    assert Counter(bodies(cluster, topic)) == Counter(
        f"body of orders-{queue}-{offset}" for queue in (0, 1) for offset in range(5)
    )


@pytest.mark.parametrize(
    "kind",
    [
        "parquet",
        "parquet, properties as text",
        "delta",
        "parquet, folders of choice",
        "delta, folders of choice",
    ],
)
def test_what_was_archived_of_a_topic(
    play: Callable[..., Replayed],
    new_topic: Callable[..., str],
    broker: BrokerThread,
    send: Callable[[Sequence[Message]], Any],
    cluster: SocketCluster,
    tmp_path: Path,
    kind: str,
) -> None:
    topic, other = f"00{next(numbers)}", new_topic()  # Spark takes such a folder for one of numbers
    broker.create_topic(topic)
    originals = [
        Message(topic, f"{n}", tags="paid", keys=[f"o-{n}"], properties={"n": str(n), "m": f"0{n % 3}"})
        for n in range(100)
    ]
    send(originals)
    wanted = read_wanted({"nameserver": broker.nameserver_address, "topic": topic}, "batch")
    folder = tmp_path / "archive"
    destination = (DeltaArchive if "delta" in kind else ParquetArchive)(folder)
    folders = ("topic", "date", "tag", "property.m") if "choice" in kind else ()
    format = Format(properties="string" if "text" in kind else "map", partitions=folders)
    with Archive(
        wanted, destination, lambda works: [write(work) for work in works], format=format
    ) as archived:
        assert archived.once().rows == 100
    where = "m in ('00', '01', '02') and tag = 'paid'" if "choice" in kind else ""
    result = play(str(folder), topics=(topic,), to_topic=other, where=where)
    assert (result.sent, result.is_complete) == (100, True)
    before, after = (
        {each.text: each for part in read(cluster, name).values() for each in part} for name in (topic, other)
    )
    assert before.keys() == after.keys()
    for text, copy in after.items():
        assert (copy.msg_id, copy.keys, copy.tags) == (before[text].msg_id, (f"o-{text}",), "paid")
        assert copy.properties["n"] == text
        source = before[text]
        place = f"{topic}/{source.broker}/{source.queue_id}/{source.queue_offset}"
        assert copy.properties[REPLAY_FROM] == place


def test_the_files_of_a_broker(
    play: Callable[..., Replayed], topic: str, cluster: SocketCluster, tmp_path: Path
) -> None:
    maker = StoreMaker(tmp_path / "broker-x")
    fill(maker, 500, ("orders", "%RETRY%shop", "RMQ_SYS_TRANS_HALF_TOPIC"), queues=3)
    wanted = [each for each in maker.messages if each.topic == "orders"]
    result = play(maker.write(), to_topic=topic)
    assert (result.sent, result.is_complete) == (len(wanted), True)
    for part in read(cluster, topic).values():
        of_queue = [each.plain_body() for each in wanted if part and each.queue_id == part[0].queue_id]
        assert [each.body for each in part] == of_queue
    assert play(maker.root.as_posix(), to_topic=topic, topics=("%RETRY%shop",), dry_run=True).planned > 100


def test_the_rate_is_that_of_all_tasks(
    play: Callable[..., Replayed], topic: str, cluster: SocketCluster, tmp_path: Path
) -> None:
    # One queue with twice as many: it gets twice the share, and both end together.
    rows = [message(0, offset) for offset in range(200)] + [message(1, offset) for offset in range(100)]
    result = play(archive(tmp_path / "a", rows), to_topic=topic, rate=200.0)
    assert result.sent == 300
    stored = sorted(each.store_timestamp for part in read(cluster, topic).values() for each in part)
    for first, last in zip(stored, stored[200:], strict=False):
        assert last - first > 600, "more than 200 in a second, but for what may come at once"


# --- going on ---------------------------------------------------------------------------------------


def test_a_replay_cut_short_goes_on_and_sends_nothing_twice(
    play: Callable[..., Replayed],
    new_topic: Callable[..., str],
    spark: SparkSession,
    cluster: SocketCluster,
    tmp_path: Path,
) -> None:
    topic = new_topic(queues=2)  # for three queues: two of them share one
    rows = [message(queue, offset) for queue in range(3) for offset in range(200)]
    source = archive(tmp_path / "a", rows)
    seen: list[int] = []

    def cut(done: int) -> None:
        if done:
            seen.append(done)
            spark.sparkContext.cancelAllJobs()

    # A minute for all of it: it is cut at the first news, however slow this machine is today.
    with pytest.raises(Exception, match="cancel"):
        play(source, "cut", to_topic=topic, rate=10.0, on_progress=cut)
    until(lambda: not running_tasks(spark), 60)
    already = len(bodies(cluster, topic))
    assert 0 < seen[0] <= already < 600
    with pytest.raises(ReplayError, match=r'started with other arguments: tags was null, now \["even"\]'):
        play(source, "cut", to_topic=topic, tags=("even",))
    result = play(source, "cut", to_topic=topic)
    # What a task was sending when it was cut may have come after we counted.
    assert result.before >= already
    assert (result.is_complete, result.sent) == (True, 600 - result.before)
    assert Counter(bodies(cluster, topic)) == Counter(row["body"].decode() for row in rows)
    for part in read(cluster, topic).values():
        for queue in range(3):
            places = [each.properties[REPLAY_FROM].rpartition("/") for each in part]
            offsets = [int(offset) for name, _, offset in places if name == f"orders/broker-x/{queue}"]
            assert offsets == sorted(offsets)
    # And a third time: it is done.
    assert play(source, "cut", to_topic=topic).before == 600
    assert len(bodies(cluster, topic)) == 600


def running_tasks(spark: SparkSession) -> int:
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    return sum(each.numRunningTasks() for each in tracker.getExecutorInfos())


@pytest.mark.long
def test_a_program_killed_midway_leaves_nothing_running_and_its_replay_goes_on(
    play: Callable[..., Replayed],
    topic: str,
    broker: BrokerThread,
    cluster: SocketCluster,
    tmp_path: Path,
) -> None:
    rows = [message(queue, offset) for queue in range(3) for offset in range(300)]
    source = archive(tmp_path / "a", rows)
    program = [
        sys.executable, "-m", "kerolox", "pipeline", "replay", source, "-n", broker.nameserver_address,
        "--to-topic", topic, "--rate", "300/s", "--id", "killed", "--state", str(tmp_path / "state"),
        "--where", "queue_id >= 0", "--master", "local[2]",
    ]  # fmt: skip
    process = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: process.poll() is not None or len(bodies(cluster, topic)) > 200, 120)
        assert process.poll() is None, process.stderr and process.stderr.read()
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.communicate()
    assert len(children) >= 2  # Java, and Python under it
    result = play(source, "killed", to_topic=topic, where="queue_id >= 0")
    assert result.is_complete
    assert 200 < result.before < 900
    assert result.sent + result.before == 900
    assert Counter(bodies(cluster, topic)) == Counter(row["body"].decode() for row in rows)
    until(lambda: not any(child.is_running() for child in children), 30)


def test_lost_answers_are_looked_for(
    broker: BrokerThread, topic: str, cluster: SocketCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_task, "SETTLE_S", 0.05)
    monkeypatch.setattr(send_task, "SLICE_S", 0.05)
    monkeypatch.setattr(send_task, "BATCH_COUNT", 10)
    rows = [message(queue, offset) for queue in (0, 1) for offset in range(100)]
    rows[150]["body"] = b"x" * 600_000  # goes alone, compressed
    target = Queue(topic, cluster.route(topic).writable[0].broker, 2)
    sources = {n: SourceQueue(Queue("orders", "broker-x", n), 0, 99, 100, target, 0) for n in (0, 1)}
    with LostAnswers() as lost:
        done = SendTask(cluster, "lost", sources, Quiet(), 0.0, unsure=False).run(lane_rows(rows))
        assert lost.sends > 25
    assert {number: (each.sent, each.error) for number, each in done.items()} == {
        0: (100, None),
        1: (100, None),
    }
    assert [each.plain_body() for each in read(cluster, topic)[target]] == [row["body"] for row in rows]


def test_a_message_no_broker_takes_ends_its_lane_and_is_named(
    broker: BrokerThread, topic: str, cluster: SocketCluster
) -> None:
    rows = [message(0, offset) for offset in range(10)]
    rows[6]["properties"] = [("long", "x" * 32_700)]
    target = cluster.route(topic).writable[0]
    sources = {0: SourceQueue(Queue("orders", "broker-x", 0), 0, 9, 10, target, 0)}
    done = SendTask(cluster, "big", sources, Quiet(), 0.0, unsure=False).run(lane_rows(rows))
    assert "message orders/broker-x/0/6: with the marks its properties take 32" in (done[0].error or "")


def test_two_messages_at_one_place_are_not_taken_for_one(cluster: SocketCluster, topic: str) -> None:
    target = cluster.route(topic).writable[0]
    sources = {0: SourceQueue(Queue("orders", "broker-x", 0), 0, 2, 5, target, 0)}
    rows = [message(0, 0), message(0, 1), message(0, 1), message(0, 2), message(0, 2, body=b"another")]
    done = SendTask(cluster, "anew", sources, Quiet(), 0.0, unsure=False).run(lane_rows(rows))
    assert "orders/broker-x/0/2 is the place of two messages" in (done[0].error or "")
    assert done[0].repeated == 1


def test_what_a_replay_had_sent_and_was_deleted_is_not_sent_again(cluster: SocketCluster, topic: str) -> None:
    target = cluster.route(topic).writable[0]
    sources = {
        0: SourceQueue(Queue("orders", "broker-x", 0), 0, 9, 10, target, -1)
    }  # it began before its begin
    rows = [message(0, offset) for offset in range(10)]
    done = SendTask(cluster, "old", sources, Quiet(), 0.0, unsure=True).run(lane_rows(rows))
    assert "may have been deleted" in (done[0].error or "")
    assert bodies(cluster, topic) == []


# --- parts ------------------------------------------------------------------------------------------


def test_tasks_see_when_they_are_not_wanted() -> None:
    told: list[int] = []
    with DriverEnd("127.0.0.1", told.append) as lifeline:
        first = TaskEnd("127.0.0.1", lifeline.port, lifeline.token, 0)
        other = TaskEnd("127.0.0.1", lifeline.port, lifeline.token, 1)
        first.tell(5)
        other.tell(7)
        until(lambda: lifeline.done == 12)
        second = TaskEnd("127.0.0.1", lifeline.port, lifeline.token, 0)  # another attempt of the same task
        until(lambda: is_cut(first))
        second.check()
        second.tell(3)
        until(lambda: lifeline.done == 10)
        with pytest.raises(NoLongerWanted, match="is not the driver of this replay"):
            TaskEnd("127.0.0.1", lifeline.port, "guessed", 2)
    until(lambda: is_cut(second))
    until(lambda: is_cut(other))
    for end in (first, other, second):
        end.close()
    with pytest.raises(NoLongerWanted, match="does not answer"):
        TaskEnd("127.0.0.1", lifeline.port, lifeline.token, 2)
    assert told[-1] == 10


def is_cut(line: TaskEnd) -> bool:
    try:
        line.check()
    except NoLongerWanted:
        return True
    return False


def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_where_queues_go() -> None:
    here = [Queue("t", broker, queue) for broker in ("a", "b") for queue in range(3)]
    assert target_of(Queue("orders", "b", 1), here) == Queue("t", "b", 1)
    assert target_of(Queue("orders", "b", 7), here) == Queue("t", "b", 1)  # of its broker, if it has one
    assert target_of(Queue("orders", "gone", 4), here) == Queue("t", "b", 1)
    assert target_of(Queue("orders", "gone", 4), list(reversed(here))) == Queue("t", "b", 1)


def test_lanes_are_about_even() -> None:
    sources = [
        SourceQueue(Queue("t", "a", n), 0, 9, count, Queue("t", "a", n), 0)
        for n, count in enumerate([5, 9, 3, 4, 1])
    ]
    tasks = tasks_of(sources, 2)
    assert sorted(sum(each.count for each in task) for task in tasks) == [10, 12]
    assert len(tasks_of(sources, 50)) == 5
    assert tasks_of([], 4) == [[]]


def test_one_run_of_a_replay_at_a_time(tmp_path: Path) -> None:
    with PlanFile(tmp_path, "x"), pytest.raises(ReplayError, match="replay x is running: this process"):
        PlanFile(tmp_path, "x").__enter__()


@pytest.mark.parametrize("text", ["-1", "fast", "inf", "nan"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="--rate"):
        parse_rate(text)


def test_rates_and_maps() -> None:
    assert (parse_rate("500/s"), parse_rate("0"), parse_rate("2.5")) == (500.0, 0.0, 2.5)
    assert parse_map(["a=b", "c=d"]) == {"a": "b", "c": "d"}
    with pytest.raises(OptionError, match="OLD=NEW"):
        parse_map(["a"])
