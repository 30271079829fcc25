from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from kerolox.errors import OptionError
from kerolox.protocol.record import encode_message
from kerolox.spark.store.options import find_paths, parse
from kerolox.spark.store.plan import Split, plan
from tests.spark.store_maker import BORN_MS, StoreMaker, fill


def splits(path: str, **options: str) -> list[Split]:
    return plan(parse({"path": path} | {key.lower(): value for key, value in options.items()}))


@pytest.fixture
def maker(tmp_path: Path) -> StoreMaker:
    return StoreMaker(tmp_path / "broker-a")


def test_pieces_are_of_the_size_that_was_asked_for(maker: StoreMaker) -> None:
    path = fill(maker, 2000, queues=3).write()
    for way in ("queues", "log"):
        assert len(splits(path, **{"from": way})) == 1
        count = len(maker.log) // 20_000
        assert count <= len(splits(path, **{"from": way}, maxSplitBytes="20000")) <= count + 7
        assert len(splits(path, **{"from": way}, minPartitions="10")) in range(10, 13)


def test_pieces_from_queues_have_about_the_same_number_of_entries(maker: StoreMaker) -> None:
    for number in range(3000):  # one topic in the first third of the log, another in all of it
        maker.add("early" if number < 1000 and number % 2 else "all", b"x" * 50, number % 2)
    counts = [
        sum(queue.end - queue.first for queue in split.queues or ())
        for split in splits(maker.write(), topic="all,early", minPartitions="6")
    ]
    assert len(counts) == 6
    assert sum(counts) == 3000
    assert max(counts) < 2 * min(counts)


def test_pieces_of_a_log_begin_with_records(maker: StoreMaker) -> None:
    path = fill(maker, 2000).write()
    starts = {message.physical_offset for message in maker.messages}
    found = splits(path, **{"from": "log"}, maxSplitBytes="10k")
    assert len(found) > 20
    assert {split.start for split in found} <= starts
    assert [split.end for split in found[:-1]] == [split.start for split in found[1:]]
    assert found[-1].end == len(maker.log)


def test_a_log_without_queues_is_cut_too_but_not_inside_a_body(maker: StoreMaker) -> None:
    fill(maker, 300)
    # a body full of records that say they lie where they lie
    at = len(maker.log) + 88
    forged = maker.messages[0]
    body = b""
    for _ in range(12):
        forged.physical_offset = at + len(body)
        body += encode_message(forged)
    holder = maker.add("orders", body)
    assert holder.physical_offset + 88 == at
    fill(maker, 300)
    maker.queues.clear()
    path = maker.write()
    starts = {message.physical_offset for message in maker.messages[1:]} | {0}
    found = splits(path, **{"from": "log"}, maxSplitBytes="3k")
    assert len(found) > 30
    assert {split.start for split in found} <= starts


def test_pieces_outside_of_the_time_are_left_out(maker: StoreMaker) -> None:
    path = fill(maker, 1000).write()
    all_of_it = splits(path, **{"from": "log"}, maxSplitBytes="10k")
    some = splits(
        path, **{"from": "log"}, maxSplitBytes="10k",
        startingTimestamp=str(BORN_MS + 500), endingTimestamp=str(BORN_MS + 550),
    )  # fmt: skip
    assert 0 < len(some) < len(all_of_it) // 5
    (piece,) = splits(path, startingTimestamp=str(BORN_MS + 500), endingTimestamp=str(BORN_MS + 550))
    assert sum(queue.end - queue.first for queue in piece.queues or ()) == 50


def test_a_time_may_be_a_date(maker: StoreMaker) -> None:
    path = fill(maker, 10).write()
    assert splits(path, startingTimestamp="2023-11-14T22:13:20Z")
    assert not splits(path, startingTimestamp="2023-11-14T22:13:21Z")


def test_a_plan_travels_with_little_luggage(maker: StoreMaker) -> None:
    path = fill(maker, 3000, queues=4).write()
    found = splits(path, maxSplitBytes="10k")
    assert max(len(pickle.dumps(split)) for split in found) < 4000
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_topic_without_messages_is_empty(maker: StoreMaker) -> None:
    path = fill(maker, 10).write()
    (maker.root / "config").mkdir()
    (maker.root / "config" / "topics.json").write_text('{"topicConfigTable":{"quiet":{"readQueueNums":4}}}')
    assert splits(path, topic="quiet") == []


# --- which directories ------------------------------------------------------------------------------


def test_paths_and_names(tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        fill(StoreMaker(tmp_path / name / "store"), 3).write()
    a, b = (str(tmp_path / name / "store") for name in ("broker-a", "broker-b"))
    both = [("broker-a", a), ("broker-b", b)]
    assert find_paths(parse({"path": f"{a}, {b}"})) == both
    assert find_paths(parse({"paths": f"{tmp_path}/*/store"})) == both
    assert find_paths(parse({"paths": json.dumps([a, b])})) == both  # load([a, b])
    assert find_paths(parse({"path": f"file://{a}"})) == both[:1]
    assert find_paths(parse({"path": f"{a},{b}", "broker": "x,y"})) == [("x", a), ("y", b)]
    assert {split.broker for split in splits(f"{tmp_path}/*/store")} == {"broker-a", "broker-b"}


def test_a_log_that_lies_elsewhere(tmp_path: Path) -> None:
    maker = fill(StoreMaker(tmp_path / "store"), 20)
    path = maker.write()
    os.rename(tmp_path / "store" / "commitlog", tmp_path / "fast-disk")
    with pytest.raises(OptionError, match="commitLog"):
        splits(path)
    assert splits(path, commitLog=str(tmp_path / "fast-disk"))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "path"),
        ({"path": "{tmp}/a", "paths": "{tmp}/b"}, "only one of"),
        ({"path": "{tmp}/none"}, "a directory that is there"),
        ({"path": "hdfs://host/a"}, "local file system"),
        ({"path": "{tmp}/a,{tmp}/b", "broker": "x"}, "2 names"),
        ({"path": "{tmp}/a,{tmp}/b", "broker": "x,x"}, "2 names"),  # a list has each name once
        ({"path": "{tmp}/a,{tmp}/a2/a"}, "another name for each path"),
        ({"path": "{tmp}/a,{tmp}/b", "commitlog": "{tmp}"}, "a single path"),
        ({"path": "{tmp}"}, "one of the 2 stores below it: {tmp}/a, {tmp}/b"),
        ({"path": "{tmp}/a/consumequeue"}, "there is no {tmp}/a/consumequeue/commitlog"),
        ({"path": "{tmp}/a", "topic": "ordres"}, "there are orders"),
        ({"path": "{tmp}/a", "topic": "batches"}, "from = log"),
        ({"path": "{tmp}/a", "topic": "orders", "topicpattern": "o.*"}, "only one of"),
        ({"path": "{tmp}/a", "topicpattern": "("}, "regular expression"),
        ({"path": "{tmp}/a", "from": "log", "queueids": "1"}, "from = queues"),
        ({"path": "{tmp}/a", "from": "disk"}, "queues or log"),
        ({"path": "{tmp}/a", "startingoffsets": "group"}, "groups' offsets"),
        ({"path": "{tmp}/a", "startingoffsets": '{"orders": {"a": {"0": 6}}}'}, "hold 0 to 5"),
        ({"path": "{tmp}/a", "endingoffsets": '{"orders": {"a": {"0": 99}}}'}, "hold 0 to 5"),
        ({"path": "{tmp}/a", "startingoffsets": "earliest", "startingtimestamp": "1"}, "only one of"),
        ({"path": "{tmp}/a", "maxsplitbyte": "1"}, "maxSplitBytes, perhaps"),
        ({"path": "{tmp}/a", "subscribe": "orders"}, "topic, the name of this option"),
        ({"path": "{tmp}/a", "oncorrupt": "ignore"}, "fail or skip"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, options: dict[str, str], what: str) -> None:
    for name in ("a", "b", "a2/a"):
        fill(StoreMaker(tmp_path / name), 10).write()
    (tmp_path / "a" / "batchconsumequeue" / "batches" / "0").mkdir(parents=True)
    given = {key: value.replace("{tmp}", str(tmp_path)) for key, value in options.items()}
    with pytest.raises(OptionError) as caught:
        plan(parse(given))
    assert what.replace("{tmp}", str(tmp_path)) in str(caught.value)
