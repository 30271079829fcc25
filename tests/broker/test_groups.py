from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kerolox.broker.members.groups import SLOW_CHECK_S, SlowGroups
from kerolox.errors import InvalidRequest, KeroloxError
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.reserved import SYSTEM_GROUPS
from tests.broker.group_kit import Part


@pytest.fixture
def part(tmp_path: Path) -> Part:
    return Part(tmp_path)


def test_a_group_is_made_when_first_needed(part: Part) -> None:
    changed: list[str] = []
    part.groups.on_change.append(changed.append)
    assert part.groups.find("g") is None
    assert part.groups.config("g") == GroupConfig(group_name="g")
    assert part.groups.config("g") is part.groups.find("g")
    assert changed == ["g"]
    assert part.groups.table.version.counter == 1


@pytest.mark.parametrize("name", ["", "a b", "g" * 121, "größe", "a.b"])
def test_a_group_with_a_bad_name_is_not_made(part: Part, name: str) -> None:
    assert part.groups.config(name) is None
    with pytest.raises(InvalidRequest):
        part.groups.put(GroupConfig(group_name=name))
    assert not part.groups.table.groups


def test_no_group_is_made_when_that_is_off_except_the_systems_own(tmp_path: Path) -> None:
    part = Part(tmp_path, auto_create_groups=False)
    assert part.groups.config("g") is None
    assert part.groups.config("CID_RMQ_SYS_x") is not None
    assert part.groups.put(GroupConfig(group_name="g"))
    assert part.groups.config("g") is not None


def test_system_groups_leave_what_the_table_says(part: Part) -> None:
    own = GroupConfig(group_name="TOOLS_CONSUMER", retry_max_times=3)
    part.groups.put(own)
    part.groups.table.create_system_groups()
    assert set(part.groups.table.groups) == set(SYSTEM_GROUPS)
    assert part.groups.find("TOOLS_CONSUMER") == own


def test_settings_are_replaced_and_attributes_merged(part: Part) -> None:
    assert part.groups.put(GroupConfig(group_name="g", attributes={"+a": "1", "+b": "2"}))
    assert part.groups.put(GroupConfig(group_name="g", retry_max_times=3, attributes={"-a": "", "+b": "3"}))
    assert part.groups.find("g") == GroupConfig(group_name="g", retry_max_times=3, attributes={"b": "3"})
    assert not part.groups.put(GroupConfig(group_name="g", retry_max_times=3))


@pytest.mark.parametrize("key", ["a", "-missing", "+", "", "+a+b", "+a-b"])
def test_wrong_attributes_change_nothing(part: Part, key: str) -> None:
    part.groups.put(GroupConfig(group_name="g"))
    with pytest.raises(KeroloxError) as refused:
        part.groups.put(GroupConfig(group_name="g", retry_max_times=1, attributes={key: "x"}))
    assert refused.value.code == 1
    assert part.groups.find("g") == GroupConfig(group_name="g")


def test_a_removed_group_takes_its_prohibitions_along(part: Part) -> None:
    part.groups.config("g")
    part.groups.set_readable("g", "t", False)
    assert part.groups.is_forbidden("g", "t")
    assert part.groups.remove("g")
    assert not part.groups.remove("g")
    part.groups.config("g")
    assert not part.groups.is_forbidden("g", "t")


def test_reading_is_forbidden_topic_by_topic(part: Part) -> None:
    part.groups.set_readable("g", "t1", False)
    part.groups.set_readable("g", "t2", False)
    part.groups.set_readable("g", "t1", True)
    assert not part.groups.is_forbidden("g", "t1")
    assert part.groups.is_forbidden("g", "t2")
    assert not part.groups.is_forbidden("other", "t2")
    version = part.groups.table.version
    part.groups.set_readable("g", "t2", False)
    assert part.groups.table.version == version


def test_other_prohibitions_than_reading_do_not_forbid_it(part: Part) -> None:
    part.groups.table.forbid("g", "t", 2)
    assert not part.groups.is_forbidden("g", "t")
    part.groups.set_readable("g", "t", False)
    part.groups.set_readable("g", "t", True)
    assert part.groups.table.forbidden == {"g": {"t": 2}}


async def test_slow_groups_are_disabled_every_three_minutes_if_asked(tmp_path: Path) -> None:
    part = Part(tmp_path, slow_group_bytes=100)
    behind = {"slow": 101, "quick": 100, "unknown": 1000}
    part.groups.config("slow")
    part.groups.config("quick")
    watch = SlowGroups(part.groups, lambda: behind, part.options, part.clock)
    watch.start()
    await part.clock.advance(SLOW_CHECK_S * 2)
    assert not part.groups.disabled  # off by default
    part.options.disable_slow_groups = True
    await part.clock.advance(SLOW_CHECK_S - 1)
    assert not part.groups.disabled
    await part.clock.advance(1)
    assert list(part.groups.disabled) == ["slow"]
    assert "101 bytes behind" in part.groups.disabled["slow"]
    assert "consumerFallbehindThreshold" in part.groups.disabled["slow"]
    slow, quick = part.groups.find("slow"), part.groups.find("quick")
    assert slow is not None
    assert not slow.consume_enable
    assert quick is not None
    assert quick.consume_enable
    version = part.groups.table.version
    await part.clock.advance(SLOW_CHECK_S)
    assert part.groups.table.version == version  # it is disabled already
    watch.close()
    assert part.clock.pending == 0


def test_an_administrator_enables_a_group_again(part: Part) -> None:
    config: Any = part.groups.config("g")
    assert part.groups.disable("g", "too slow")
    assert not part.groups.disable("g", "still too slow")
    assert not part.groups.disable("unknown", "too slow")
    part.groups.put(msgspec.structs.replace(config, retry_max_times=1, consume_enable=False))
    assert part.groups.disabled == {"g": "too slow"}
    part.groups.put(config)
    assert part.groups.disabled == {}
    assert part.groups.find("g") == config
