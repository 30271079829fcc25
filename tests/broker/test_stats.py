"""What is counted, and what the samples make of it."""

from __future__ import annotations

from kerolox.broker.figures.stats import SILENT_S_MAX, Statistics
from kerolox.testing.clock import ManualClock


def made() -> tuple[Statistics, ManualClock]:
    clock = ManualClock()
    stats = Statistics("c1", clock)
    stats.start()
    return stats, clock


async def test_a_minute_of_a_topic() -> None:
    stats, clock = made()
    for _ in range(6):
        stats.stored("t", 5, 500)
        await clock.advance(10)
    found = stats.named("TOPIC_PUT_NUMS", "t")
    assert found is not None
    assert found.stats_minute is not None
    assert found.stats_minute.sum == 30
    assert found.stats_minute.tps == 0.5
    assert found.stats_minute.avgpt == 5.0
    sizes = stats.named("TOPIC_PUT_SIZE", "t")
    assert sizes is not None
    assert sizes.stats_minute is not None
    assert sizes.stats_minute.sum == 3000
    await clock.advance(60)  # the window moves on
    found = stats.named("TOPIC_PUT_NUMS", "t")
    assert found is not None
    assert found.stats_minute is not None
    assert found.stats_minute.sum == 0
    assert stats.put_rate("t") == 0.0
    assert stats.put_rate("other") == 0.0


async def test_hour_and_day() -> None:
    stats, clock = made()
    stats.stored("t", 7, 70)
    await clock.advance(3600)
    found = stats.named("TOPIC_PUT_NUMS", "t")
    assert found is not None
    assert (found.stats_hour.sum, found.stats_day.sum) == (7, 7)  # type: ignore[union-attr]
    await clock.advance(3600)
    found = stats.named("TOPIC_PUT_NUMS", "t")
    assert found is not None
    assert (found.stats_hour.sum, found.stats_day.sum) == (0, 7)  # type: ignore[union-attr]


async def test_gets_by_group_and_queue() -> None:
    stats, clock = made()
    stats.served("g", "t", 0, 32, 3200, 100)
    stats.served("g", "t", 1, 8, 800, 4000)
    stats.sent_back("g", "t")
    stats.sent_back("g", "t", dead=True)
    await clock.advance(10)

    def minute(name: str, key: str) -> int:
        found = stats.named(name, key)
        assert found is not None
        assert found.stats_minute is not None
        return found.stats_minute.sum

    assert minute("GROUP_GET_NUMS", "t@g") == 40
    assert minute("GROUP_GET_SIZE", "t@g") == 4000
    assert minute("QUEUE_GET_NUMS", "t@1@g") == 8
    assert minute("SNDBCK_PUT_NUMS", "t@g") == 1
    assert minute("DLQ_PUT_NUMS", "t@g") == 1
    assert minute("BROKER_GET_NUMS", "c1") == 40
    assert minute("BROKER_PUT_NUMS", "c1") == 0
    assert stats.get_rate("g", "t") == 4.0
    assert stats.behind_by_group() == {"g": 4000}
    for name, key in (
        ("GROUP_GET_NUMS", "t@other"), ("BROKER_GET_NUMS", "c2"), ("NONSENSE", "t"), ("QUEUE_GET_NUMS", "t"),
    ):  # fmt: skip
        assert stats.named(name, key) is None
    stats.forget_group("g")
    assert stats.named("GROUP_GET_NUMS", "t@g") is None
    assert stats.behind_by_group() == {}


async def test_rates_over_ten_seconds_a_minute_and_ten() -> None:
    stats, clock = made()
    misses = 0
    stats.count_misses(lambda: misses)
    for _ in range(60):
        stats.stored("t", 6, 60)
        await clock.advance(1)
    misses = 5
    await clock.advance(10)
    assert stats.rates.over(0) == [0.0, 5.0, 360 / 70]
    assert stats.rates.over(2) == [0.5, 5 / 60, 5 / 70]
    assert stats.totals == (360, 0)


async def test_totals_leave_out_system_topics() -> None:
    stats = Statistics("c", ManualClock(), lambda topic: topic.startswith("rmq_sys_"))
    stats.stored("t", 3, 30)
    stats.stored("rmq_sys_x", 5, 50)
    stats.served("g", "t", 0, 2, 20, 0)
    stats.served("g", "rmq_sys_x", 0, 4, 40, 0)
    assert stats.totals == (3, 2)
    assert (stats.all_puts.messages, stats.all_gets.messages) == (8, 6)


async def test_days_end_at_midnight() -> None:
    stats, clock = made()
    stats.stored("t", 3, 30)
    stats.served("g", "t", 0, 1, 10, 0)
    await clock.advance(24 * 3600)
    assert stats.today_morning == (3, 1)
    stats.stored("t", 4, 40)
    await clock.advance(24 * 3600)
    assert (stats.yesterday_morning, stats.today_morning) == ((3, 1), (7, 1))


async def test_silent_flows_are_forgotten() -> None:
    stats, clock = made()
    stats.stored("busy", 1, 1)
    stats.stored("silent", 1, 1)
    hours = SILENT_S_MAX // 3600 + 2
    for _ in range(hours):
        await clock.advance(3600)
        stats.stored("busy", 1, 1)
    assert set(stats.puts) == {"busy"}


async def test_put_times() -> None:
    stats, clock = made()
    slow_s = 0.0

    def write() -> None:
        clock._monotonic_s += slow_s

    timed = stats.timed(write)
    timed()  # nothing was stored
    assert "]:1" not in stats.put_distribution()
    stats.stored("t", 99, 99)
    timed()
    stats.stored("t", 1, 1)
    slow_s = 0.3
    timed()
    assert "[<=0ms]:99" in stats.put_distribution()
    assert "[200~500ms]:1" in stats.put_distribution()
    assert round(stats.put_ms_max) == 300
    assert stats.put_ms_of(0.99) == 0.5
    assert stats.put_ms_of(0.999) == 500
    stats.forget_topic("t")
    assert stats.named("TOPIC_PUT_NUMS", "t") is None
    stats.close()
