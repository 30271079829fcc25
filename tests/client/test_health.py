"""Which brokers are left alone, and for how long."""

from __future__ import annotations

import pytest

from kerolox.client.calls.health import BrokerHealth
from kerolox.testing.clock import ManualClock


@pytest.mark.parametrize(
    ("took_ms", "avoided_s"),
    [
        (10, 0),
        (99, 0),
        (549, 0),
        (550, 2),
        (1799, 2),
        (1800, 5),
        (3000, 6),
        (5000, 10),
        (15_000, 30),
        (99_000, 30),
    ],
)
async def test_the_slower_the_longer(took_ms: int, avoided_s: int) -> None:
    clock = ManualClock()
    health = BrokerHealth(clock)
    health.answered("a", took_ms / 1000)
    assert health.is_available("a") == (avoided_s == 0)
    assert health.is_available("b")
    await clock.advance(max(0.0, avoided_s - 0.1))
    assert health.is_available("a") == (avoided_s == 0)
    await clock.advance(0.2)
    assert health.is_available("a")


async def test_a_failure_counts_as_ten_seconds() -> None:
    clock = ManualClock()
    health = BrokerHealth(clock)
    health.failed("a")
    assert not health.all_well
    await clock.advance(9.9)
    assert not health.is_available("a")
    await clock.advance(0.2)
    assert health.is_available("a")


def test_a_quick_answer_forgives() -> None:
    health = BrokerHealth(ManualClock())
    health.failed("a")
    health.answered("a", 0.01)
    assert health.all_well


def test_brokers_that_are_gone_are_forgotten() -> None:
    health = BrokerHealth(ManualClock())
    health.failed("a")
    health.failed("b")
    health.forget_all_but(["b", "c"])
    assert health.is_available("a")
    assert not health.is_available("b")
    assert "'b'" in repr(health)
