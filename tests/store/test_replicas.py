"""Who has what of the log, and when so many have it that an answer may leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.dispatch.kit import ASYNC, SYNC, Rig, rig_at, until
from tests.store.ends import Ends
from tests.store.test_flush import append

from kerolox.store.log.acks import NotCopied
from kerolox.store.log.progress import Progress
from kerolox.store.log.replica_waits import ReplicaWaits
from kerolox.store.log.replicas import REPLICAS_MAX, Replicas, TooManyReplicas
from kerolox.store.log.safe import Safe
from kerolox.store.message_store import MessageStore
from kerolox.store.options import StoreOptions
from kerolox.store.state import Obstacle
from kerolox.testing.clock import ManualClock

GAP = 1000
TIMEOUT_S = 3.0


class Log:
    """A log that is only a number, its followers, and who waits for them."""

    def __init__(self, **options: int) -> None:
        self.ends = Ends()
        self.progress = Progress(self.ends, wait_for_flush=False)
        self.clock = ManualClock()
        self.options = StoreOptions(**{"replica_gap_bytes": GAP, **options})
        self.replicas = Replicas(self.progress, self.options)
        self.waits = ReplicaWaits(self.replicas, self.options, self.clock)

    def follow(self, name: str, acked: int | None = None) -> None:
        self.replicas.joined(name)
        if acked is not None:
            assert self.replicas.acked(name, acked)

    def wait(self, needed: int, end: int | None = None) -> list[Safe]:
        told: list[Safe] = []
        self.waits.wait(self.progress.appended if end is None else end, needed, told.append)
        return told


# --- who has what -----------------------------------------------------------------------------------


def test_a_follower_counts_from_its_first_word_on() -> None:
    log = Log()
    log.ends.wrote = 100
    log.follow("a")
    assert (log.replicas.in_sync(100), log.replicas.having(0), log.replicas.reached(2)) == (1, 1, -1)
    assert log.replicas.acked("a", 0)
    assert (log.replicas.in_sync(100), log.replicas.having(1), log.replicas.reached(2)) == (2, 1, 0)
    assert log.replicas.acked("a", 100)
    assert (log.replicas.having(100), log.replicas.reached(1), log.replicas.reached(2)) == (2, 100, 100)
    assert log.replicas.reached(3) == -1
    log.replicas.left("a")
    log.replicas.left("a")
    assert (list(log.replicas), log.replicas.in_sync(100)) == ([], 1)


def test_nobody_has_more_than_the_leader() -> None:
    log = Log()
    log.ends.wrote = 100
    log.follow("a", 40)
    for claimed in (101, 1 << 62, -1):
        assert not log.replicas.acked("a", claimed)
    assert not log.replicas.acked("stranger", 50)
    assert log.replicas.reached(2) == 40
    assert log.replicas.acked("a", 30)  # it is believed to have less
    assert log.replicas.reached(2) == 30


def test_who_lacks_too_much_is_not_in_sync() -> None:
    log = Log()
    log.ends.wrote = 5000
    log.follow("near", 5000 - GAP + 1)
    log.follow("far", 5000 - GAP)
    log.follow("silent")
    assert log.replicas.in_sync(5000) == 2
    assert [replica.name for replica in log.replicas.behind()] == ["far", "silent"]
    assert log.replicas.acked("far", 4999)
    assert log.replicas.in_sync(5000) == 3


def test_so_many_may_follow() -> None:
    log = Log()
    for number in range(REPLICAS_MAX):
        log.follow(str(number))
    with pytest.raises(TooManyReplicas, match="64 are connected, which is the limit"):
        log.follow("one more")
    with pytest.raises(ValueError, match="'7' is connected already"):
        log.follow("7")


# --- who waits --------------------------------------------------------------------------------------


async def test_enough_replicas_answer() -> None:
    log = Log()
    log.ends.wrote = 100
    log.follow("a", 0)
    log.follow("b", 0)
    two, three = log.wait(2), log.wait(3)
    assert log.replicas.acked("a", 99)
    assert (two, three) == ([], [])
    assert log.replicas.acked("a", 100)
    assert (two, three) == ([Safe.YES], [])
    assert log.replicas.acked("b", 100)
    assert three == [Safe.YES]
    assert log.wait(3) == [Safe.YES]  # all have it already
    assert not log.waits


async def test_nobody_waits_for_followers_that_are_not_there() -> None:
    log = Log()
    log.ends.wrote = 100
    assert log.wait(2) == [Safe.NO_REPLICA]
    log.follow("a")
    assert log.wait(2) == [Safe.NO_REPLICA]  # it has said nothing yet
    assert log.replicas.acked("a", 0)
    assert (log.wait(2), log.wait(3)) == ([], [Safe.NO_REPLICA])
    log.ends.wrote = 100 + GAP
    assert log.wait(2) == [Safe.NO_REPLICA]  # it lacks too much


async def test_who_waits_when_a_follower_leaves_is_told_at_once() -> None:
    log = Log()
    log.ends.wrote = 100
    log.follow("a", 0)
    log.follow("b", 0)
    two, three = log.wait(2), log.wait(3)
    log.replicas.left("a")
    assert (two, three) == ([], [Safe.NO_REPLICA])
    log.replicas.left("b")
    assert two == [Safe.NO_REPLICA]
    assert not log.waits


async def test_the_deadline_is_by_the_clock_and_one_timer_serves_all() -> None:
    log = Log()
    log.ends.wrote = 100
    log.follow("a", 0)
    first = log.wait(2)
    await log.clock.advance(1)
    second = [log.wait(2) for _ in range(1000)]
    assert log.clock.pending == 1
    await log.clock.advance(1.99)
    assert first == []
    await log.clock.advance(0.01)
    assert first == [Safe.REPLICA_TIMEOUT]
    assert second == [[]] * 1000
    await log.clock.advance(1)
    assert second == [[Safe.REPLICA_TIMEOUT]] * 1000
    assert log.clock.pending == 0
    assert log.replicas.acked("a", 100)  # too late for them
    assert first == [Safe.REPLICA_TIMEOUT]


async def test_what_is_cut_off_is_told_to_be_gone() -> None:
    log = Log()
    log.ends.wrote = 200
    log.follow("a", 0)
    kept, gone = log.wait(2, 100), log.wait(2, 200)
    assert log.replicas.acked("a", 50)
    log.ends.wrote = 100
    log.replicas.cut(100)
    log.waits.cut(100)
    assert (kept, gone) == ([], [Safe.CUT])
    assert log.replicas.acked("a", 100)
    assert kept == [Safe.YES]


@dataclass
class Asked:
    end: int
    needed: int
    deadline_s: float
    told: Safe | None = None


NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, GAP // 2)),
        st.tuples(st.just("wait"), st.integers(2, 5)),
        st.tuples(st.just("join"), NAMES),
        st.tuples(st.just("leave"), NAMES),
        st.tuples(st.just("ack"), NAMES, st.integers(0, 120)),  # percent of the log
        st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0, 2.9])),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_nobody_hears_yes_before_enough_have_it(steps: list[tuple[str, object, int]]) -> None:
    async def run() -> None:
        log, asked, has = Log(), [], dict[str, int]()

        def told(one: Asked, how: Safe) -> None:
            assert one.told is None, "told once"
            one.told = how
            having = 1 + sum(offset >= one.end for offset in has.values())
            in_sync = 1 + sum(offset > one.end - GAP for offset in has.values() if offset >= 0)
            now_s = log.clock.monotonic_s()
            if how is Safe.YES:
                assert having >= one.needed
            else:
                assert having < one.needed
            if how is Safe.NO_REPLICA:
                assert in_sync < one.needed
            if how is Safe.REPLICA_TIMEOUT:
                assert now_s == pytest.approx(one.deadline_s)

        for what, value, *more in steps:
            if what == "append":
                log.ends.wrote += value  # type: ignore[operator]
            elif what == "wait":
                end = log.progress.appended
                one = Asked(end, value, log.clock.monotonic_s() + TIMEOUT_S)  # type: ignore[arg-type]
                asked.append(one)
                log.waits.wait(end, one.needed, partial(told, one))
            elif what == "join" and value not in has:
                has[str(value)] = -1
                log.replicas.joined(str(value))
            elif what == "leave":
                has.pop(str(value), None)
                log.replicas.left(str(value))
            elif what == "ack" and value in has:
                offset = log.progress.appended * more[0] // 100
                if offset <= log.progress.appended:
                    has[str(value)] = offset
                believed = log.replicas.acked(str(value), offset)
                assert believed == (offset <= log.progress.appended)
            elif what == "pass":
                await log.clock.advance(value)  # type: ignore[arg-type]
            for one in asked:  # nobody who could be told is kept waiting
                if one.told is None:
                    assert 1 + sum(offset >= one.end for offset in has.values()) < one.needed
                    assert log.clock.monotonic_s() < one.deadline_s + 1e-6
        await log.clock.advance(TIMEOUT_S)
        assert all(one.told is not None for one in asked)
        assert not log.waits

    asyncio.run(run())


# --- with a store -----------------------------------------------------------------------------------


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 20) as rig:
        yield rig
        rig.disk.release_syncs()


async def led(rig: Rig, followers: int = 1, **options: object) -> MessageStore:
    store = await rig.open(**{"flush_mode": ASYNC, **options})
    store.acks.wait_for_replicas = True
    for number in range(followers):
        store.replicas.joined(f"f{number}")
        assert store.replicas.acked(f"f{number}", 0)
    return store


def stored(store: MessageStore) -> tuple[int, list[Safe]]:
    end = append(store, b"one")
    store.log.write()
    told: list[Safe] = []
    store.acks.when_safe(end, told.append)
    return end, told


@pytest.mark.parametrize(
    ("options", "followers", "needed"),
    [
        ({}, 0, 2),  # SYNC_MASTER means what it says
        ({"replicas_needed": 1}, 2, 1),
        ({"replicas_needed": 3}, 1, 3),
        ({"replicas_needed": 3, "replicas_degrade": True}, 0, 1),
        ({"replicas_needed": 3, "replicas_degrade": True}, 1, 2),
        ({"replicas_needed": 3, "replicas_degrade": True}, 4, 3),
        ({"replicas_needed": 3, "replicas_degrade": True, "replicas_min": 2}, 0, 2),
    ],
)
async def test_how_many_are_needed(rig: Rig, options: dict[str, int], followers: int, needed: int) -> None:
    store = await led(rig, followers, **options)
    assert (store.acks.wait, store.acks.needed) == (True, needed)
    store.acks.wait_for_replicas = False
    assert (store.acks.wait, store.acks.needed) == (False, 1)


async def test_too_few_for_any_promise(rig: Rig) -> None:
    store = await led(rig, 1, replicas_min=3)
    assert store.acks.lacks_replicas == "2 of at least 3 (minInSyncReplicas) are in sync"
    store.replicas.joined("another")
    assert store.acks.lacks_replicas is not None
    assert store.replicas.acked("another", 0)
    assert store.acks.lacks_replicas is None
    store.replicas.left("another")
    assert store.acks.lacks_replicas is not None
    store.acks.wait_for_replicas = False
    assert store.acks.lacks_replicas is None


async def test_disk_and_replicas_are_waited_for_side_by_side(rig: Rig) -> None:
    store = await led(rig, flush_mode=SYNC)
    rig.disk.stall_syncs()
    end, told = stored(store)
    assert await asyncio.to_thread(rig.disk.wait_for_stalled_sync)
    assert store.replicas.acked("f0", end)
    assert told == []
    rig.disk.release_syncs()
    await store.flusher.flush_all()
    assert told == [Safe.YES]
    end, told = stored(store)
    await store.flusher.flush_all()
    assert told == []
    assert store.replicas.acked("f0", end)
    assert told == [Safe.YES]


@pytest.mark.parametrize(
    ("flush_timeout_ms", "acked", "says"),
    [
        (1000, True, Safe.FLUSH_TIMEOUT),
        (5000, False, Safe.REPLICA_TIMEOUT),
        (1000, False, Safe.REPLICA_TIMEOUT),
    ],
)
async def test_the_worse_is_told_and_the_replicas_before_the_disk(
    rig: Rig, flush_timeout_ms: int, acked: bool, says: Safe
) -> None:
    store = await led(rig, flush_mode=SYNC, flush_timeout_ms=flush_timeout_ms)
    rig.disk.stall_syncs()
    end, told = stored(store)
    assert await asyncio.to_thread(rig.disk.wait_for_stalled_sync)
    if acked:
        assert store.replicas.acked("f0", end)
    await rig.clock.advance(3)
    rig.disk.release_syncs()
    await store.flusher.flush_all()
    assert told == [says]


async def test_a_failed_flush_is_told_whoever_has_it(rig: Rig) -> None:
    store = await led(rig, flush_mode=SYNC)
    rig.disk.fail_syncs(1)
    end, told = stored(store)
    await until(lambda: store.state.fenced)
    assert told == [Safe.FAILED]  # and not only when the follower has said something
    assert store.replicas.acked("f0", end)
    assert told == [Safe.FAILED]


async def test_coroutines_hear_the_code_of_the_answer(rig: Rig) -> None:
    store = await led(rig)
    end, _ = stored(store)
    waiting = asyncio.ensure_future(store.acks.safe(end))
    await rig.clock.advance(3)
    with pytest.raises(NotCopied, match=r"FLUSH_SLAVE_TIMEOUT: stored here, but not on 2 .*3000 ms") as late:
        await waiting
    assert late.value.code == 12
    store.replicas.left("f0")
    with pytest.raises(NotCopied, match="SLAVE_NOT_AVAILABLE: stored here, but fewer than 2") as gone:
        await store.acks.safe(end)
    assert gone.value.code == 11


async def test_the_cut_of_a_log_ends_the_waiting_for_what_is_gone(rig: Rig) -> None:
    store = await led(rig)
    end, _ = stored(store)
    assert store.replicas.acked("f0", end)
    last, told = stored(store)
    store.state.set(Obstacle.FOLLOWER, "another one leads")
    await store.truncate(end)
    assert told == [Safe.CUT]
    assert not store.replicas.acked("f0", last)


async def test_who_waits_while_the_store_closes_hears_that_it_is_stored(rig: Rig) -> None:
    store = await led(rig)
    _, told = stored(store)
    await store.close()
    assert told == [Safe.REPLICA_TIMEOUT]


async def test_readers_see_what_no_follower_has(rig: Rig) -> None:
    store = await led(rig)
    end, told = stored(store)
    assert (told, store.progress.confirmed, store.progress.replicated) == ([], end, None)
