"""What goes between guarded servers of Apache's and of ours, and our other clients at Apache's: the blocking
one, that of bare sockets, and Spark. (The client itself: client_scenarios/test_access.py.)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox import blocking
from kerolox.client.errors import AccessDenied
from kerolox.client.messages import Message
from kerolox.client.sockets.socket_cluster import SocketCluster

from .access_tool import Tool, manage
from .conftest import Factory
from .driver import JavaDriver
from .guarded import NOBODY, Guarded, Keys, apaches, ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.full  # half a minute for a broker of Apache's

Unique = Callable[[str], str]
WORKER = Keys("worker-key", "reads & writes é€")
READER = Keys("reader-key", "reads only")
STRANGERS = (Keys(WORKER.access_key, "guessed"), NOBODY)
WAIT_S = 40.0
REFUSED = "NO_PERMISSION|AclException"  # as 5.x and 4.9 say it


@pytest.fixture(scope="module")
def apache(java_session: Factory) -> Iterator[Guarded]:
    made = apaches(java_session, {}, {WORKER: True, READER: False})
    yield made
    made.finish()


@pytest.fixture
def topic(apache: Guarded, unique: Unique) -> str:
    return asyncio.run(apache.create_topic(unique("topic"), 2))


# --- our other clients ----------------------------------------------------------------------------------


def test_the_client_without_await(apache: Guarded, topic: str, unique: Unique) -> None:
    with blocking.Producer(apache.as_(WORKER), group=unique("pid")) as producer:
        producer.send_many([Message(topic, f"{n}") for n in range(20)])
        with producer.transaction(Message(topic, "20")):
            pass
    options = blocking.PullOptions(start="first")
    found: list[str] = []
    with blocking.PullConsumer(
        apache.as_(READER), group=unique("group"), topics=[topic], options=options
    ) as consumer:
        while len(found) < 21:
            batch = consumer.poll(WAIT_S)
            assert batch is not None
            found += [message.text for message in batch]
    assert sorted(found, key=int) == [f"{n}" for n in range(21)]
    for keys in (READER, *STRANGERS):
        with (
            blocking.Producer(apache.as_(keys), group=unique("pid")) as producer,
            pytest.raises(AccessDenied),
        ):
            producer.send(Message(topic, "x"))


def test_the_client_of_bare_sockets(apache: Guarded, topic: str, unique: Unique) -> None:
    with blocking.Producer(apache.as_(WORKER), group=unique("pid")) as producer:
        producer.send_many([Message(topic, f"{n}") for n in range(20)])
    with SocketCluster(apache.as_(READER)) as cluster:
        queues = cluster.route(topic).readable
        found = [
            message.text
            for queue in queues
            for message in cluster.read(
                queue, cluster.min_offset(queue), cluster.max_offset(queue), group=unique("group")
            )
        ]
    assert sorted(found, key=int) == [f"{n}" for n in range(20)]
    for keys in STRANGERS:
        with SocketCluster(apache.as_(keys)) as cluster:
            with pytest.raises(AccessDenied):
                cluster.max_offset(queues[0])
            with pytest.raises(AccessDenied):
                list(cluster.read(queues[0], 0, 1, group=unique("group")))


def test_our_administration(apache: Guarded, topic: str) -> None:
    async def administer() -> None:
        async with apache.admin() as admin:
            assert len(await admin.topic_stats(topic)) == 2
        for keys in (WORKER, READER, *STRANGERS):
            with pytest.raises(AccessDenied):
                await apache.create_topic(f"{topic}-of-{keys.access_key}", keys=keys)

    asyncio.run(administer())


# --- Spark ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    pytest.importorskip("pyspark")
    from kerolox.spark.session import session

    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    return session("kerolox-peers", "local[2,2]", conf=quick)


@pytest.mark.parametrize("guarantee", ["at-least-once", "effectively-once"])
def test_spark_writes_and_reads(
    spark: SparkSession, apache: Guarded, topic: str, unique: Unique, tmp_path: Path, guarantee: str
) -> None:
    def options(keys: Keys, **more: str) -> dict[str, str]:
        return {"nameserver": apache.nameserver, "topic": topic, **keys.of_java, **more}

    rows = spark.range(0, 500, 1, 2).selectExpr("concat('row ', id) as body", "'t' as tags")
    own = options(WORKER, deliveryGuarantee=guarantee)
    rows.write.format("rocketmq").mode("append").options(**own).save()
    expected = sorted(f"row {number}" for number in range(500))
    read = spark.read.format("rocketmq").options(**options(READER)).load()
    assert sorted(row.body.decode() for row in read.collect()) == expected
    taken: list[str] = []

    def take(batch: Any, number: int) -> None:
        taken.extend(row.body.decode() for row in batch.collect())

    stream = spark.readStream.format("rocketmq").options(
        **options(READER, startingOffsets="earliest", group=unique("group"))
    )
    writer = stream.load().writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(taken) == expected
    # RocketMQ 4.9 lets batches in of everybody it knows.
    for keys in STRANGERS if apache.has_accounts else (READER, *STRANGERS):
        with pytest.raises(Exception, match=REFUSED) as refused:
            rows.write.format("rocketmq").mode("append").options(**options(keys)).save()
        assert keys.secret_key not in str(refused.value) or not keys.secret_key
    for keys in STRANGERS:
        with pytest.raises(Exception, match=REFUSED):
            spark.read.format("rocketmq").options(**options(keys)).load().collect()


# --- users between servers ------------------------------------------------------------------------------


@pytest.fixture
def tools(
    apache: Guarded, java_driver: JavaDriver, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tool, Tool]]:
    """mqadmin at Apache's broker, and at ours."""
    if java_driver.jars.is_4x:
        pytest.skip("mqadmin 4.9 has no such commands")
    guarded = ours(tmp_path / "ours", {}, {WORKER: True, READER: False})
    yield (
        Tool(java_driver, apache, tmp_path / "tools-apache.yml"),
        Tool(java_driver, guarded, tmp_path / "tools-ours.yml"),
    )
    guarded.finish()


@pytest.mark.parametrize("by", ["broker", "cluster"])
def test_mqadmin_prints_the_same(tools: tuple[Tool, Tool], by: str) -> None:
    seen = []
    for tool in tools:
        where = ("-b", tool.address) if by == "broker" else ("-c", "DefaultCluster")
        seen.append([(command, _sorted(came)) for command, came in manage(tool, where)])
    differences = {
        command: (theirs, mine) for (command, theirs), (_, mine) in zip(*seen, strict=True) if theirs != mine
    }
    assert differences == {}


def _sorted(came: object) -> object:
    """Without order: ours tells actions in the order that they have, Apache's in the order they were told."""
    return (
        sorted(sorted(word.strip("[],") for word in line) for line in came)
        if isinstance(came, list)
        else came
    )


def test_users_and_rules_are_copied_between_servers(tools: tuple[Tool, Tool]) -> None:
    for source, target in (tools, tools[::-1]):
        source("createUser", "-b", source.address, "-u", "dave", "-p", "daves-secret")
        rule = (
            "-s",
            "User:dave",
            "-r",
            "Topic:a*,Group:*,*",
            "-a",
            "Pub,Get",
            "-d",
            "Deny",
            "-i",
            "10.0.0.0/8",
        )
        source("createAcl", "-b", source.address, *rule)
        way = ("-f", source.address, "-t", target.address)
        copied = source("copyUser", *way, "-u", "dave")
        assert [line[:4] for line in copied] == [["copy", "user", "of", "dave"]]
        copied = source("copyAcl", *way, "-s", "User:dave")
        assert [line[:4] for line in copied] == [["copy", "acl", "of", "User:dave"]]
        for command in (["getUser", "-u", "dave"], ["getAcl", "-s", "User:dave"]):
            there, here = (tool(command[0], "-b", tool.address, *command[1:]) for tool in (source, target))
            assert sorted(there) == sorted(here)
            assert len(here) > 1
        assert source("copyUser", *way) != []  # all
        assert source("copyAcl", *way) != []
        for tool in (source, target):
            tool("deleteUser", "-b", tool.address, "-u", "dave")
            assert tool("listAcl", "-b", tool.address, "-s", "dave") == []
