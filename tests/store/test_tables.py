from __future__ import annotations

import json
import logging
import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig
from kerolox.store.disk.files import Files
from kerolox.store.errors import StoreError
from kerolox.store.tables import (
    BloomPlaces,
    ConsumerOffsets,
    DelayOffsets,
    FilterData,
    FilterTable,
    GroupTable,
    Table,
    TableBroken,
    TopicTable,
)
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

# As RocketMQ writes them: tabs, and integers as keys without quotes.
TOPICS = """{
	"dataVersion":{
		"counter":7,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"topicConfigTable":{
		"TopicTest":{
			"attributes":{},
			"order":false,
			"perm":6,
			"readQueueNums":4,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"TopicTest",
			"topicSysFlag":0,
			"writeQueueNums":8
		}
	}
}"""
OFFSETS = """{
	"dataVersion":{
		"counter":7,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"groupTopicMap":{
		"g":["TopicTest","%RETRY%g"]
	},
	"offsetTable":{
		"%RETRY%g@g":{0:0
		},
		"TopicTest@g":{0:250,1:251
		}
	}
}"""
GROUPS = """{
	"dataVersion":{"counter":3,"stateVersion":1,"timestamp":5},
	"forbiddenTable":{
		"g":{
			"T":4
		}
	},
	"subscriptionGroupTable":{
		"g":{
			"attributes":{},
			"brokerId":0,
			"consumeBroadcastEnable":true,
			"consumeEnable":false,
			"consumeFromMinEnable":true,
			"consumeMessageOrderly":false,
			"consumeTimeoutMinute":15,
			"groupName":"g",
			"groupRetryPolicy":{
				"type":"CUSTOMIZED"
			},
			"groupSysFlag":0,
			"notifyConsumerIdsChangedEnable":true,
			"retryMaxTimes":3,
			"retryQueueNums":1,
			"whichBrokerWhenConsumeSlowly":1
		}
	}
}"""
DELAYS = '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":17},"offsetTable":{1:10,3:0\n\t}}'
FILTERS = """{
	"filterDataByTopic":{
		"T":{
			"groupFilterData":{
				"g":{
					"bloomFilterData":{
						"bitNum":112,
						"bitPos":[1,5,9]
					},
					"bornTime":1600000000000,
					"clientVersion":1600000000001,
					"consumerGroup":"g",
					"dead":false,
					"deadTime":0,
					"expression":"a > 5",
					"expressionType":"SQL92",
					"topic":"T"
				}
			},
			"topic":"T"
		}
	}
}"""


def reload(table: Table) -> Table:
    """The same table as another process finds it."""
    again = type(table)(Files(), os.path.dirname(table.path), clock=ManualClock())
    assert again.load()
    return again


def said(table: Table) -> object:
    """What is written of a table, without the checksum."""
    tree = json.loads(table.encode())
    assert tree.pop("keroloxCrc32")
    return tree


def test_topics_of_rocketmq(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(TOPICS)
    table = TopicTable(Files(), tmp_path, clock=ManualClock())
    assert table.load()
    assert table.version == DataVersion(counter=7, timestamp=1700000000000)
    assert table.topics["TopicTest"].write_queue_nums == 8
    assert said(table) == json.loads(TOPICS)


def test_topics_change_with_their_version(tmp_path: Path) -> None:
    clock = ManualClock()
    table = TopicTable(Files(), tmp_path, clock=clock)
    assert not table.load()
    config = TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4)
    assert table.put(config)
    assert not table.put(config)
    assert table.version == DataVersion(counter=1, timestamp=clock.wall_ms())
    assert table.changed
    table.save(table.encode())
    assert not table.changed
    again = reload(table)
    assert isinstance(again, TopicTable)
    assert (again.topics, again.version) == (table.topics, table.version)
    assert again.remove("orders") == config
    assert again.remove("orders") is None
    assert again.version.counter == 2
    again.replace({"orders": config}, DataVersion(counter=99))
    assert (again.topics, again.version.counter) == ({"orders": config}, 99)


def test_members_nobody_here_knows_are_written_back(tmp_path: Path) -> None:
    tree = json.loads(TOPICS)
    tree["futureTable"] = {"x": [1, 2]}
    tree["topicConfigTable"]["TopicTest"]["futureSetting"] = "on"
    (tmp_path / "topics.json").write_text(json.dumps(tree))
    table = TopicTable(Files(), tmp_path)
    table.load()
    assert said(table) == tree
    table.remove("TopicTest")
    table.put(TopicConfig(topic_name="TopicTest"))
    assert "futureSetting" not in json.loads(table.encode())["topicConfigTable"]["TopicTest"]

    groups = json.loads(GROUPS)
    groups["subscriptionGroupTable"]["g"]["futureSetting"] = {"deep": True}
    (tmp_path / "subscriptionGroup.json").write_text(json.dumps(groups))
    group_table = GroupTable(Files(), tmp_path)
    group_table.load()
    assert said(group_table) == groups


def test_groups_of_rocketmq(tmp_path: Path) -> None:
    (tmp_path / "subscriptionGroup.json").write_text(GROUPS)
    table = GroupTable(Files(), tmp_path)
    table.load()
    assert not table.groups["g"].consume_enable
    assert table.forbidden == {"g": {"T": 4}}
    assert said(table) == json.loads(GROUPS)


def test_groups_change(tmp_path: Path) -> None:
    table = GroupTable(Files(), tmp_path)
    assert table.put(GroupConfig(group_name="g", retry_max_times=5))
    assert not table.put(GroupConfig(group_name="g", retry_max_times=5))
    table.forbid("g", "T", 2)
    table.forbid("g", "U", 1)
    table.forbid("g", "U", 0)
    table.save()
    again = reload(table)
    assert isinstance(again, GroupTable)
    assert (again.groups, again.forbidden) == (table.groups, {"g": {"T": 2}})
    assert again.version.counter == 4
    assert again.remove("g") is not None
    assert (again.groups, again.forbidden) == ({}, {})
    again.replace({"h": GroupConfig(group_name="h")}, DataVersion(counter=50), {"h": {"T": 1}})
    assert (list(again.groups), again.forbidden, again.version.counter) == (["h"], {"h": {"T": 1}}, 50)


def test_offsets_of_rocketmq_have_bare_integer_keys(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text(OFFSETS)
    table = ConsumerOffsets(Files(), tmp_path)
    table.load()
    assert table.offsets == {"%RETRY%g@g": {0: 0}, "TopicTest@g": {0: 250, 1: 251}}
    assert table.version.counter == 7
    written = json.loads(table.encode())  # strict: quoted
    assert written["offsetTable"] == {"%RETRY%g@g": {"0": 0}, "TopicTest@g": {"0": 250, "1": 251}}
    assert sorted(written["groupTopicMap"]["g"]) == ["%RETRY%g", "TopicTest"]


def test_a_file_of_4_x_has_offsets_only(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:5}}}')
    table = ConsumerOffsets(Files(), tmp_path)
    table.load()
    assert (table.offset("T", "g", 0), table.version) == (5, DataVersion())
    (tmp_path / "delayOffset.json").write_text('{"offsetTable":{1:5}}')
    delays = DelayOffsets(Files(), tmp_path)
    delays.load()
    assert delays.offsets == {1: 5}


def test_commits_bump_the_version_every_500(tmp_path: Path) -> None:
    table = ConsumerOffsets(Files(), tmp_path)
    assert table.offset("T", "g", 0) == -1
    assert table.commit("T", "g", 0, 10) == -1
    assert table.commit("T", "g", 0, 8) == 10
    assert table.offset("T", "g", 0) == 8
    assert table.version.counter == 0
    for n in range(498):
        table.commit("T", "g", 1, n, state_version=3)
    assert (table.version.counter, table.version.state_version) == (1, 3)


def test_pull_and_reset_offsets_stay_in_memory(tmp_path: Path) -> None:
    table = ConsumerOffsets(Files(), tmp_path)
    table.commit("T", "g", 0, 100)
    assert table.pull_offset("T", "g", 0) == 100
    table.note_pull("T", "g", 0, 120)
    assert table.pull_offset("T", "g", 0) == 120
    assert table.pull_offset("T", "g", 1) == -1
    table.reset("T", "g", 0, 40)
    table.commit("T", "g", 0, 101)  # by a member that does not know yet
    assert table.has_reset("T", "g", 0)
    assert table.offset("T", "g", 0) == 40
    table.save()
    again = reload(table)
    assert isinstance(again, ConsumerOffsets)
    assert (again.offset("T", "g", 0), again.has_reset("T", "g", 0)) == (101, False)
    assert again.pull_offset("T", "g", 0) == 101
    assert table.take_reset("T", "g", 0) == 40
    assert table.take_reset("T", "g", 0) is None
    assert table.offset("T", "g", 0) == 101


def test_groups_and_topics_are_forgotten(tmp_path: Path) -> None:
    table = ConsumerOffsets(Files(), tmp_path)
    for topic in ("T", "U"):
        for group in ("g", "h"):
            table.commit(topic, group, 0, 1)
    table.note_pull("V", "g", 0, 5)
    assert table.clone("T", "g", "new")
    assert not table.clone("X", "g", "new")
    assert table.groups_of("T") == {"g", "h", "new"}
    assert table.topics_of("g") == {"T", "U"}
    assert table.remove_group("g") == 2
    assert table.pull_offset("V", "g", 0) == -1
    assert table.remove_topic("U") == 1
    assert table.remove("T", "h") == 1
    assert table.offsets == {"T@new": {0: 1}}
    table.replace({"A@b": {2: 3}}, DataVersion(counter=9))
    assert (table.queues("A", "b"), table.queues("A", "c"), table.version.counter) == ({2: 3}, {}, 9)


def test_delay_offsets(tmp_path: Path) -> None:
    (tmp_path / "delayOffset.json").write_text(DELAYS)
    table = DelayOffsets(Files(), tmp_path, version_step=2)
    table.load()
    assert table.offsets == {1: 10, 3: 0}
    table.update(1, 11)
    table.update(2, 5)
    assert table.version.counter == 8
    assert json.loads(table.encode())["offsetTable"] == {"1": 11, "2": 5, "3": 0}
    table.replace({4: 4}, None)
    assert (table.offsets, table.version.counter) == ({4: 4}, 8)


def test_filters_are_dead_until_their_group_comes_again(tmp_path: Path) -> None:
    (tmp_path / "consumerFilter.json").write_text(FILTERS)
    clock = ManualClock()
    table = FilterTable(Files(), tmp_path, clock=clock)
    table.load()
    data = table.find("T", "g")
    assert data is not None
    assert (data.expression, data.dead_time, data.dead) == ("a > 5", clock.wall_ms() - 30_000, True)
    written = json.loads(table.encode())["filterDataByTopic"]["T"]["groupFilterData"]["g"]
    expected = json.loads(FILTERS)["filterDataByTopic"]["T"]["groupFilterData"]["g"]
    assert written == {**expected, "dead": True, "deadTime": data.dead_time}
    clock.step_wall(24 * 3600 * 1000)
    assert said(table) == {"filterDataByTopic": {}}


def test_filters_of_another_size_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "consumerFilter.json").write_text(FILTERS)
    table = FilterTable(Files(), tmp_path, bits=256)
    assert table.load()
    assert table.by_topic == {}


def test_filters_change(tmp_path: Path) -> None:
    clock = ManualClock()
    table = FilterTable(Files(), tmp_path, clock=clock)
    bloom = BloomPlaces(bit_num=112, bit_pos=(1, 2, 3))
    data = FilterData(topic="T", consumer_group="g", born_time=clock.wall_ms(), bloom_filter_data=bloom)
    table.put(data)
    assert not data.dead
    table.mark_dead("g")
    assert (found := table.find("T", "g")) is not None
    assert found.dead
    assert table.remove("T", "g")
    assert not table.remove("T", "g")
    assert table.find("T", "g") is None


def test_a_save_keeps_the_content_before(tmp_path: Path) -> None:
    table = DelayOffsets(Files(), tmp_path / "config")
    table.update(1, 1)
    table.save()
    table.update(1, 2)
    table.save()
    assert json.loads((tmp_path / "config/delayOffset.json.bak").read_text())["offsetTable"] == {"1": 1}
    assert json.loads((tmp_path / "config/delayOffset.json").read_text())["offsetTable"] == {"1": 2}


@pytest.mark.parametrize("main", [b'{"offsetTable":{1:', b'{"offsetTable":[1]}', b"[]", b"", b"\0\0", None])
def test_the_backup_takes_the_place_of_a_file_that_cannot_be_read(
    tmp_path: Path, main: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    backup = tmp_path / "delayOffset.json.bak"
    backup.write_text(DELAYS)
    os.utime(backup, (0, clock.wall_ms() / 1000 - 90))
    if main is not None:
        (tmp_path / "delayOffset.json").write_bytes(main)
    table = DelayOffsets(Files(), tmp_path, clock=clock)
    with caplog.at_level(logging.WARNING):
        assert table.load()
    assert table.offsets == {1: 10, 3: 0}
    assert f"path={tmp_path}/delayOffset.json" in caplog.text
    assert "backup_age_s=90" in caplog.text
    if main is not None:
        assert (tmp_path / "delayOffset.json.broken").read_bytes() == main
    table.save()  # and it does not become the backup
    assert backup.read_text() == DELAYS
    assert reload(table).path == table.path


def test_when_both_are_broken_nothing_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text('{"topicConfigTable":{"T":{"perm":6}')
    (tmp_path / "topics.json.bak").write_text("nonsense")
    table = TopicTable(Files(), tmp_path)
    with pytest.raises(TableBroken, match=r"cannot read .*topics\.json .*at byte.*topics\.json\.bak"):
        table.load()
    (tmp_path / "topics.json.bak").unlink()
    with pytest.raises(TableBroken, match="it does not exist"):
        table.load()
    assert (tmp_path / "topics.json").exists()


def test_a_failed_save_is_still_to_be_done(tmp_path: Path) -> None:
    disk = FaultyFiles()
    table = DelayOffsets(disk, tmp_path)
    table.update(1, 1)
    table.save()
    table.update(1, 2)
    disk.read_only = True
    with pytest.raises(StoreError):
        table.save(table.encode())
    assert table.changed
    assert DelayOffsets(Files(), tmp_path).load()


@given(
    st.dictionaries(
        st.tuples(st.text("abAZ09%_-é", min_size=1, max_size=9), st.text("abAZ09_-", min_size=1, max_size=9)),
        st.dictionaries(st.integers(0, 1000), st.integers(0, 2**62), min_size=1, max_size=4),
        max_size=6,
    ),
    st.integers(0, 3),
    st.none() | st.integers(0, 500),
)
@settings(max_examples=60, deadline=None)
def test_offsets_survive_power_loss(
    progress: dict[tuple[str, str], dict[int, int]], lost_after: int, seed: int | None
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        disk = FaultyFiles()
        table = ConsumerOffsets(disk, os.path.join(directory, "config"))
        saved: list[dict[str, dict[int, int]]] = [{}]
        for round_ in range(3):
            for (topic, group), queues in progress.items():
                for queue_id, offset in queues.items():
                    table.commit(topic, group, queue_id, offset + round_)
            if round_ == lost_after:
                break
            table.save()
            saved.append({key: dict(queues) for key, queues in table.offsets.items()})
        disk.power_loss(seed, names=True)
        again = ConsumerOffsets(disk, os.path.join(directory, "config"))
        again.load()
        assert again.offsets == saved[-1]


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(max_examples=100, deadline=None)
def test_any_content_is_read_or_refused(junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for kind in (TopicTable, GroupTable, ConsumerOffsets, DelayOffsets, FilterTable):
            table = kind(Files(), directory)
            Path(table.path).write_bytes(b'{"offsetTable":' + junk)
            try:
                table.load()
            except TableBroken:
                continue
            table.encode()


# --- damage ----------------------------------------------------------------------------------------------


def full_tables(directory: Path) -> list[Table]:
    """Tables with something in them, saved twice, so that each has a backup."""
    topics, groups = TopicTable(Files(), directory), GroupTable(Files(), directory)
    offsets, delays = ConsumerOffsets(Files(), directory), DelayOffsets(Files(), directory)
    for round_ in range(2):
        for number in range(6):
            topics.put(TopicConfig(topic_name=f"T{number}", read_queue_nums=4 + round_, write_queue_nums=8))
            groups.put(GroupConfig(group_name=f"g{number}", retry_max_times=round_))
            offsets.commit(f"T{number}", "g", number, 1000 * number + round_)
            delays.update(number + 1, 500 * number + round_)
        for table in (topics, groups, offsets, delays):
            table.save()
    return [topics, groups, offsets, delays]


@pytest.mark.parametrize("kind", range(4), ids=["topics", "groups", "offsets", "delays"])
def test_no_flipped_or_zeroed_byte_changes_what_a_table_says(tmp_path: Path, kind: int) -> None:
    """It is read as it was saved, or as it was saved before that, or refused. A digit, too, can flip."""
    table = full_tables(tmp_path)[kind]
    path, backup = Path(table.path), Path(f"{table.path}.bak")
    data, older = path.read_bytes(), backup.read_bytes()
    saved = [_content_of(type(table), each, tmp_path / "check") for each in (data, older)]
    assert saved[0] != saved[1]
    chance = random.Random(kind)
    refused = 0
    for at in range(len(data)):
        wrong = bytearray(data)
        if at % 4:
            wrong[at] ^= 1 << chance.randrange(8)
        else:
            wrong[at : at + chance.randrange(1, 200)] = bytes(1)
        path.write_bytes(wrong)
        again = type(table)(Files(), tmp_path)
        if at % 2:
            backup.write_bytes(older)
        else:
            backup.unlink(missing_ok=True)
        try:
            loaded = again.load()
        except TableBroken:
            refused += 1
            continue
        assert loaded
        # A checksum that lost its name is a member nobody knows; the rest is whole.
        assert again._content() in saved, (at, bytes(wrong[at - 20 : at + 20]))
    assert refused > len(data) // 4


def _content_of(kind: type[Table], data: bytes, directory: Path) -> dict[str, object]:
    directory.mkdir(exist_ok=True)
    table = kind(Files(), directory)
    Path(table.path).write_bytes(data)
    assert table.load()
    return table._content()


def test_a_table_without_a_checksum_is_read_and_one_edited_by_hand_is_named(tmp_path: Path) -> None:
    table = full_tables(tmp_path)[3]
    path = Path(table.path)
    tree = json.loads(path.read_bytes())
    assert tree.pop("keroloxCrc32")
    tree["offsetTable"]["1"] = 77
    path.write_text(json.dumps(tree))
    assert reload(table).offsets[1] == 77  # type: ignore[attr-defined]
    tree["keroloxCrc32"] = 5
    for name in (path, path.with_name(path.name + ".bak")):
        name.write_text(json.dumps(tree))
    with pytest.raises(TableBroken, match="edited by hand"):
        reload(table)
