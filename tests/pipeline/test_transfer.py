"""Stores made of parts of others: opened by our store, and read by offset, key and group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.client.messages import Message
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.transfer import transfer as made_by
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_record, decode_records
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.verify import verify
from kerolox.store.options import StoreOptions
from kerolox.store.tables.offsets import ConsumerOffsets
from kerolox.store.tables.topics import TopicTable
from kerolox.testing.threads import BrokerThread
from tests.pipeline.archiving import archive
from tests.pipeline.rebuild_stores import FILE_BYTES, layout_of
from tests.spark.store_maker import BORN_MS, StoreMaker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kerolox.pipeline.runner import Runner

HOST = "10.1.2.3:10911"
Send = Callable[[Sequence[Message]], Any]


def make_store(root: Path, count: int, late_ms: int = 0, *, first_offset: int = 0) -> StoreMaker:
    """Two topics of two queues, whose first messages were deleted, and what a broker keeps for itself."""
    maker = StoreMaker(root, FILE_BYTES)
    offsets: dict[tuple[str, int], int] = {}
    for number in range(count):
        topic, queue_id = ("orders", "payments", "SCHEDULE_TOPIC_XXXX")[number % 3], number // 3 % 2
        offset = offsets.get((topic, queue_id), first_offset)
        offsets[topic, queue_id] = offset + 1
        maker.add(
            topic,
            f"{root.name} {number}".encode().ljust(100, b"."),
            queue_id,
            properties={"KEYS": f"{root.name}-{number}", "TAGS": "ab"[number % 2], "DELAY": "3"},
            stored_ms=BORN_MS + 10 * number + late_ms,
            ipv6=number % 7 == 0,
            queue_offset=offset,
            queued=False,
        )
    maker.queues.clear()
    maker.write()
    files, config = Files(), root / "config"
    topics, groups = TopicTable(files, config), ConsumerOffsets(files, config)
    for topic in ("orders", "payments"):
        topics.put(TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2, perm=4))
        groups.commit(topic, "billing", 1, first_offset + 3)
    config.mkdir()
    topics.save()
    groups.save()
    return maker


def request(roots: list[Path], to: Path, **changes: object) -> made_by.TransferRequest:
    given = {"part_bytes": 40_000, **changes}
    return made_by.TransferRequest([layout_of(root) for root in roots], str(to), **given)  # type: ignore[arg-type]


def options_of(to: Path, *, small: bool) -> StoreOptions:
    if not small:  # a command without a configuration file, and without queues to look at
        return StoreOptions(store_path=str(to), commit_log_file_bytes=FILE_BYTES)
    return StoreOptions(
        store_path=str(to),
        commit_log_file_bytes=FILE_BYTES,
        queue_file_bytes=2000,
        index_slots=100,
        index_entries=700,
    )


def read_all(
    to: Path, queues: list[tuple[str, int]], keys: list[str], *, small: bool = True
) -> tuple[list[list[StoredMessage]], list[str]]:
    """All messages of queues from their first offset on, and the bodies found by keys."""

    async def read() -> tuple[list[list[StoredMessage]], list[str]]:
        found = []
        async with MessageStore(options_of(to, small=small)) as store:
            for topic, queue_id in queues:
                offset, end = (
                    store.queues.min_offset(topic, queue_id),
                    store.queues.max_offset(topic, queue_id),
                )
                messages: list[StoredMessage] = []
                while offset < end:
                    answer = await store.queues.read(topic, queue_id, offset, count_max=32)
                    messages += decode_records(b"".join(answer.parts))
                    offset = answer.next_offset
                found.append(messages)
            bodies = []
            for key in keys:
                (record,) = await store.find_by_key("orders", key, 10, 0, 1 << 60)
                bodies.append(decode_record(record).body.decode().rstrip("."))
        return found, bodies

    return asyncio.run(read())


def test_a_topic_is_split_off(runner: Runner, tmp_path: Path) -> None:
    root, to = tmp_path / "a", tmp_path / "split"
    maker = make_store(root, 900, first_offset=250)
    asked = request([root], to, topics=("orders",), store_host=HOST)
    made = made_by.transfer(runner, asked)
    assert (made.messages, made.queues, made.holes, made.groups) == (300, 2, 0, 1)
    (zero, one), bodies = read_all(to, [("orders", 0), ("orders", 1)], ["a-0", "a-897"])
    old = [message for message in maker.messages if message.topic == "orders"]
    for queue_id, new in enumerate((zero, one)):
        before = [message for message in old if message.queue_id == queue_id]
        assert [each.queue_offset for each in new] == [*range(250, 400)]
        assert [each.body for each in new] == [each.body for each in before]
        assert [each.packed_properties for each in new] == [each.packed_properties for each in before]
        assert {each.store_host for each in new} == {host_bytes(HOST)}
    assert bodies == ["a 0", "a 897"]
    offsets, topics = ConsumerOffsets(Files(), to / "config"), TopicTable(Files(), to / "config")
    offsets.load()
    topics.load()
    assert offsets.offsets == {"orders@billing": {1: 253}}
    assert topics.topics["orders"].perm == 4
    assert "payments" not in topics.topics
    assert verify(layout_of(to)).clean
    assert made_by.transfer(runner, asked) == made  # it is finished
    with pytest.raises(KeroloxError, match="no store has a topic 'other'"):
        made_by.check_request(request([root], tmp_path / "x", topics=("other",)))


def test_stores_are_merged(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kerolox.spark import session

    monkeypatch.setattr(session, "session", lambda *_, **__: spark)
    monkeypatch.setattr(session, "stop", lambda: None)
    roots, to = [tmp_path / "a", tmp_path / "b"], tmp_path / "merged"
    make_store(roots[0], 600)
    make_store(roots[1], 300, late_ms=1000, first_offset=40)
    words = ["pipeline", "merge", *map(str, roots), "--to", str(to)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["messages"], told["queues"], told["left_out"]) == (600, 8, {"SCHEDULE_TOPIC_XXXX": 300})
    assert "not copied: SCHEDULE_TOPIC_XXXX" in CliRunner().invoke(app, words).stdout
    mapping = json.loads((to / made_by.MAPPING).read_bytes())
    assert [(move["queue_id"], move["new_queue_id"]) for move in mapping if move["topic"] == "orders"] == [
        (0, 0), (1, 1), (0, 2), (1, 3),
    ]  # fmt: skip
    queues, bodies = read_all(to, [("orders", number) for number in range(4)], ["a-3", "b-297"], small=False)
    assert [len(queue) for queue in queues] == [100, 100, 50, 50]
    assert [queue[0].queue_offset for queue in queues] == [0, 0, 40, 40]
    for queue in queues:
        assert [each.queue_offset for each in queue] == [
            *range(queue[0].queue_offset, queue[-1].queue_offset + 1)
        ]
        assert [each.store_timestamp for each in queue] == sorted(each.store_timestamp for each in queue)
    assert bodies == ["a 3", "b 297"]
    offsets = ConsumerOffsets(Files(), to / "config")
    offsets.load()
    assert offsets.offsets["orders@billing"] == {1: 3, 3: 43}
    # Messages of both lie in the order of their times, up to a chunk.
    places = sorted(
        (each.physical_offset, queue_id) for queue_id, queue in enumerate(queues) for each in queue
    )
    sides = [queue_id // 2 for _, queue_id in places]
    assert sides.count(1) == 100
    assert sum(before != after for before, after in pairwise(sides)) > 4
    with pytest.raises(OptionError, match="each store only once"):
        made_by.check_request(request([roots[0], roots[0]], tmp_path / "x"))


def test_an_archive_is_merged_with_a_store(
    runner: Runner, tmp_path: Path, broker: BrokerThread, topic: str, send: Send
) -> None:
    send([Message(topic, f"archived {number}", keys=f"k{number}", tags="t") for number in range(40)])
    archive(tmp_path / "archive", broker.nameserver_address, topic)
    make_store(tmp_path / "a", 300)
    asked = request(
        [tmp_path / "a"], tmp_path / "new", archives=(str(tmp_path / "archive"),), store_host=HOST
    )
    made = made_by.transfer(runner, asked)
    assert made.messages == 240
    moves = [move for move in made.mapping if move.topic == topic]
    queues, _ = read_all(tmp_path / "new", [(topic, move.new_queue_id) for move in moves], ["a-3"])
    messages = [message for queue in queues for message in queue]
    assert sorted(message.body for message in messages) == sorted(b"archived %d" % n for n in range(40))
    assert {(message.tag, message.store_address) for message in messages} == {("t", HOST)}
    assert [len(queue) for queue in queues] == [move.messages for move in moves]
    assert [queue[-1].queue_offset + 1 for queue in queues] == [move.end for move in moves]
    assert verify(layout_of(tmp_path / "new")).clean
