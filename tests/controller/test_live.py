"""Who lives: by heartbeats, connections and a clock that is moved by hand."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from kerolox.controller import live as live_module
from kerolox.controller.live import (
    HEARTBEAT_TIMEOUT_S,
    LOST_LATELY_S,
    TIMEOUT_S_MAX,
    TIMEOUT_S_MIN,
    LiveTable,
)
from kerolox.controller.requests import LastSign
from kerolox.testing.clock import ManualClock

A = "broker-a"
ONE, OTHER = cast(Any, object()), cast(Any, object())  # connections


def alive(table: LiveTable, group: str = A) -> set[int]:
    return set(table.view([group]).of(group))


async def test_a_heartbeat_counts_for_its_time() -> None:
    clock = ManualClock()
    table = LiveTable(clock)
    table.hear((A, 1), ONE, LastSign(1, 5), 3.0)
    table.hear((A, 2), ONE, LastSign())
    assert table.view([A, "other"]).of(A)[1] == LastSign(1, 5)
    await clock.advance(3.0)
    assert alive(table) == {1, 2}
    await clock.advance(0.1)
    assert alive(table) == {2}  # before anybody looked
    clock.step_wall(3_600_000)
    assert alive(table) == {2}
    assert table.expire() == [((A, 1), ONE)]
    await clock.advance(HEARTBEAT_TIMEOUT_S)
    assert table.expire() == [((A, 2), ONE)]
    assert len(table) == 0


async def test_what_a_broker_said_last_counts_though_it_is_less() -> None:
    """After its log was cut. RocketMQ keeps the larger figures."""
    table = LiveTable(ManualClock())
    table.hear((A, 1), ONE, LastSign(2, 500))
    table.hear((A, 1), ONE, LastSign(2, 300))
    assert table.view([A]).of(A)[1].max_offset == 300


async def test_times_that_brokers_ask_for_are_bounded() -> None:
    clock = ManualClock()
    table = LiveTable(clock)
    table.hear((A, 1), ONE, LastSign(), 1e12)
    table.hear((A, 2), ONE, LastSign(), 1e-9)
    table.hear((A, 3), ONE, LastSign(), -1)
    await clock.advance(TIMEOUT_S_MIN * 0.9)
    assert alive(table) == {1, 2, 3}
    await clock.advance(1)
    assert alive(table) == {1, 3}
    await clock.advance(TIMEOUT_S_MAX)
    assert alive(table) == set()


async def test_only_the_last_connection_counts() -> None:
    table = LiveTable(ManualClock())
    table.hear((A, 1), ONE, LastSign())
    table.hear((A, 1), OTHER, LastSign())
    table.note((A, 2), ONE)
    table.note((A, 2), OTHER)
    assert table.lose(ONE) == []
    assert alive(table) == {1, 2}
    assert table.lose(OTHER) == [(A, 1), (A, 2)]
    assert alive(table) == set()


async def test_who_was_heard_and_lost_is_known_to_be_gone() -> None:
    clock = ManualClock()
    table = LiveTable(clock)
    table.hear((A, 1), ONE, LastSign())
    table.lose(ONE)
    found = table.view([A])
    assert not found.is_settled
    assert found.gone == {(A, 1)}
    table.hear((A, 1), OTHER, LastSign())
    assert table.view([A]).gone == set()
    await clock.advance(HEARTBEAT_TIMEOUT_S)
    assert table.view([A]).is_settled


async def test_who_leads_anew_knows_nothing_of_those_it_has_not_heard_since() -> None:
    """Another controller heard them, and told them so, until a moment ago."""
    clock = ManualClock()
    table = LiveTable(clock)
    table.hear((A, 1), ONE, LastSign())
    table.hear((A, 2), OTHER, LastSign(), 3.0)
    table.hear((A, 4), ONE, LastSign())
    await clock.advance(2)
    table.lose(ONE)  # 1 and 4
    await clock.advance(HEARTBEAT_TIMEOUT_S)
    assert table.view([A]).is_settled
    assert [key for key, _ in table.expire()] == [(A, 2)]
    table.hear((A, 3), OTHER, LastSign(), 3.0)
    table.begin()
    found = table.view([A])
    assert not found.is_settled
    assert found.gone == set()
    await clock.advance(1)
    table.hear((A, 4), OTHER, LastSign(), 3.0)
    await clock.advance(4)
    assert {key for key, _ in table.expire()} == {(A, 3), (A, 4)}
    assert table.view([A]).gone == {(A, 4)}  # its whole time has passed under this one
    await clock.advance(5)
    assert table.view([A]).is_settled


async def test_who_leads_anew_knows_of_those_that_have_just_hung_up() -> None:
    """The controller that led is gone, and with it maybe the machine of a master."""
    clock = ManualClock()
    table = LiveTable(clock)
    await clock.advance(HEARTBEAT_TIMEOUT_S)
    table.hear((A, 1), ONE, LastSign())
    table.hear((A, 2), OTHER, LastSign())
    table.lose(ONE)
    await clock.advance(LOST_LATELY_S - 1)
    table.lose(OTHER)
    await clock.advance(2)
    table.begin()
    assert table.view([A]).gone == {(A, 2)}
    table.hear((A, 2), OTHER, LastSign())
    assert table.view([A]).gone == set()


async def test_there_is_room_for_so_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(live_module, "LIVE_MAX", 2)
    table = LiveTable(ManualClock())
    for id in range(1, 5):
        table.hear((A, id), ONE if id == 1 else OTHER, LastSign())
    assert alive(table) == {1, 2}
    table.hear((A, 2), OTHER, LastSign(3))  # those it has are heard
    assert table.view([A]).of(A)[2].epoch == 3
    assert caplog.text.count("broker_not_heard") == 1
    table.lose(ONE)
    table.hear((A, 4), OTHER, LastSign())
    assert alive(table) == {2, 4}
