from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.store.dispatch.kit import options_for

from kerolox.store.retention import MS_PER_HOUR, LogFile, RetentionVerdict, delete_hours, judge


def at_hour(hour: int) -> int:
    """A moment in the hour of the day, in the zone the tests run in."""
    now = time.localtime(1_700_000_000)
    return int(time.mktime((now.tm_year, now.tm_mon, now.tm_mday, hour, 30, 0, 0, 0, -1)) * 1000)


NOON = at_hour(12)
FOUR = at_hour(4)
NONE_YET = ", but no file may be deleted yet"


def files(*ages_h: float, now_ms: int = NOON) -> list[LogFile]:
    """Files of 100 bytes, so many hours old."""
    return [
        LogFile(number * 100, number * 100 + 100, now_ms - int(age * MS_PER_HOUR))
        for number, age in enumerate(ages_h)
    ]


@pytest.mark.parametrize(
    ("ages_h", "ratio", "changes", "more", "before", "full", "reason"),
    [
        # By age, and only at the hour.
        ((100, 73, 72, 71, 0), 0.5, {}, {"hour": 4}, 300, False, "it is 4 o'clock"),
        ((100, 73, 72, 71, 0), 0.5, {}, {}, None, False, "nothing is due"),
        ((100, 73), 0.5, {"delete_hours": "04;12"}, {}, 100, False, "it is 12 o'clock"),
        ((71, 70), 0.5, {}, {"hour": 4}, None, False, f"it is 4 o'clock{NONE_YET}"),
        # A younger one in front keeps those behind it.
        ((10, 100, 100), 0.5, {}, {"hour": 4}, None, False, f"it is 4 o'clock{NONE_YET}"),
        # Never the last.
        ((100,), 0.5, {}, {"hour": 4}, None, False, f"it is 4 o'clock{NONE_YET}"),
        ((100,), 0.99, {}, {}, None, True, f"the disk is 99% full{NONE_YET}"),
        ((), 0.99, {}, {}, None, True, f"the disk is 99% full{NONE_YET}"),
        # By order.
        ((100, 1), 0.5, {}, {"ordered": True}, 100, False, "a deletion was ordered"),
        ((1, 1), 0.5, {}, {"ordered": True}, None, False, f"a deletion was ordered{NONE_YET}"),
        # A filling disk: old ones at any hour; a fuller one: young ones too; a full one: no messages.
        ((100, 1, 0), 0.75, {}, {}, None, False, "nothing is due"),
        ((100, 1, 0), 0.76, {}, {}, 100, False, "the disk is 76% full"),
        ((100, 1, 0), 0.85, {}, {}, 100, False, "the disk is 85% full"),
        ((100, 1, 0), 0.86, {}, {}, 200, False, "the disk is 86% full"),
        ((100, 1, 0), 0.90, {}, {}, 200, False, "the disk is 90% full"),
        ((100, 1, 0), 0.91, {}, {}, 200, True, "the disk is 91% full"),
        ((100, 1, 0), 0.91, {"force_clean": False}, {}, 100, True, "the disk is 91% full"),
        # Shares that are no whole number in binary are compared as they are set.
        ((100, 1), 0.56, {"disk_percent_max": 56}, {}, None, False, "nothing is due"),
        ((100, 1), 0.57, {"disk_percent_max": 57}, {}, None, False, "nothing is due"),
        # It stays full until it is emptier than where files go before their time.
        ((1, 1), 0.88, {}, {"was_full": True}, 100, True, "the disk is 88% full"),
        ((1, 1), 0.88, {}, {}, 100, False, "the disk is 88% full"),
        ((1, 1), 0.85, {}, {"was_full": True}, None, False, f"the disk is 85% full{NONE_YET}"),
        ((1, 1), 0.50, {}, {"was_full": True}, None, False, "nothing is due"),
        # The queues' disk counts as well.
        ((1, 1), 0.10, {}, {"queue_disk_ratio": 0.95}, 100, True, "the disk is 95% full"),
        ((100, 1), -1.0, {}, {"queue_disk_ratio": 0.1}, 100, False, "the disk usage is unknown"),
        ((100, 1), 0.1, {}, {"queue_disk_ratio": -1.0}, 100, False, "the disk usage is unknown"),
        ((100, 1), -1.0, {}, {}, 100, False, "the disk usage is unknown"),
        # A few at a time.
        ((100,) * 30, 0.5, {}, {"ordered": True}, 1000, False, "a deletion was ordered"),
        ((100,) * 30, 0.5, {"delete_batch_max": 3}, {"ordered": True}, 300, False, "a deletion was ordered"),
        # Kept for no time at all.
        ((0, 0, 0), 0.5, {"keep_hours": 0}, {"ordered": True}, 200, False, "a deletion was ordered"),
        # From the future, as after a clock that was set back.
        ((-5, 0), 0.5, {}, {"hour": 4}, None, False, f"it is 4 o'clock{NONE_YET}"),
    ],
)  # fmt: skip
def test_verdicts(
    tmp_path: Path,
    ages_h: tuple[float, ...],
    ratio: float,
    changes: dict[str, object],
    more: dict[str, object],
    before: int | None,
    full: bool,
    reason: str,
) -> None:
    more = dict(more)
    now_ms = FOUR if more.pop("hour", 12) == 4 else NOON
    options = options_for(tmp_path, **changes)
    verdict = judge(files(*ages_h, now_ms=now_ms), ratio, now_ms, options, **more)  # type: ignore[arg-type]
    assert verdict == RetentionVerdict(before, full, reason)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("04", {4}), ("4", {4}), ("04;16", {4, 16}), (" 04 ; 23;", {4, 23}), ("24;-1;x;²", set()), ("", set())],
)
def test_hours(text: str, hours: set[int]) -> None:
    assert delete_hours(text) == hours
