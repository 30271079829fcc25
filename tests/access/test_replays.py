"""What was signed in form 2 counts once, and for a while."""

from __future__ import annotations

import random

import pytest

from kerolox.access import replays
from kerolox.access.replays import NUMBERS_KEPT, Replays
from kerolox.protocol.signature_v2 import Stamp
from kerolox.testing.clock import ManualClock

NOW_MS = 1_700_000_000_000
WINDOW_S = 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


def stamp(number: int, after_ms: int = 0, session: bytes = b"session1") -> Stamp:
    return Stamp(NOW_MS + after_ms, session, number)


def test_each_number_counts_once_in_any_order(clock: ManualClock) -> None:
    seen = Replays(clock, WINDOW_S)
    numbers = list(range(1, 2000))
    random.Random(7).shuffle(numbers)
    assert [seen.refusal("u", stamp(number)) for number in numbers] == [None] * len(numbers)
    assert all("used before" in (seen.refusal("u", stamp(number)) or "") for number in numbers)
    assert seen.refusal("other", stamp(1)) is None  # of another user
    assert seen.refusal("u", stamp(1, session=b"session2")) is None


def test_what_lies_far_behind_is_refused(clock: ManualClock) -> None:
    seen = Replays(clock, WINDOW_S)
    assert seen.refusal("u", stamp(NUMBERS_KEPT + 1)) is None
    assert "behind the newest" in (seen.refusal("u", stamp(1)) or "")
    assert seen.refusal("u", stamp(2)) is None
    assert "used before" in (seen.refusal("u", stamp(2)) or "")
    assert seen.refusal("u", stamp((1 << 64) - 1)) is None
    assert "behind the newest" in (seen.refusal("u", stamp(NUMBERS_KEPT + 1)) or "")


@pytest.mark.parametrize(("after_ms", "counts"), [(0, True), (60_000, True), (60_001, False), (-1, False)])
async def test_the_time_of_signing(clock: ManualClock, after_ms: int, counts: bool) -> None:
    """Nothing from before the start counts: it may have been used then."""
    assert (Replays(clock, WINDOW_S).refusal("u", stamp(1, after_ms)) is None) == counts


async def test_old_ones_are_refused_when_their_session_is_forgotten(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "SESSIONS_MAX", 2)
    seen = Replays(clock, WINDOW_S)
    for number in (1, 2):
        assert seen.refusal("u", stamp(1, session=b"session%d" % number)) is None
    assert "2 programs have signed" in (seen.refusal("u", stamp(1, session=b"session3")) or "")
    await clock.advance(61)
    assert "apart" in (seen.refusal("u", stamp(1, session=b"session1")) or "")
    await clock.advance(60)
    assert seen.refusal("u", stamp(1, 121_000, b"session3")) is None
    assert "apart" in (seen.refusal("u", stamp(1, session=b"session1")) or "")
