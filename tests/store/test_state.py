from __future__ import annotations

import pytest

from kerolox.store.state import NotWritable, Obstacle, StoreState


def test_reasons_are_told_all_at_once_and_the_first_of_a_kind_stays() -> None:
    state = StoreState()
    changes: list[int] = []
    state.on_change.append(lambda: changes.append(len(state.obstacles)))
    state.check_writable()
    state.set(Obstacle.DISK_FULL, "the disk is 95% full")
    state.set(Obstacle.DISK_FULL, "another reason")
    state.set(Obstacle.FENCED, "a flush failed")
    with pytest.raises(NotWritable) as refused:
        state.check_writable()
    assert str(refused.value) == (
        "the store accepts no messages: disk full: the disk is 95% full; fenced: a flush failed"
    )
    assert refused.value.code == 14
    assert refused.value.obstacles == state.obstacles
    assert (state.writable, state.fenced, changes) == (False, True, [1, 2])


def test_a_fence_stays_and_others_go() -> None:
    state = StoreState()
    state.set(Obstacle.FENCED, "a flush failed")
    state.set(Obstacle.FOLLOWER, "another leads")
    state.clear(Obstacle.FOLLOWER)
    state.clear(Obstacle.FOLLOWER)
    with pytest.raises(ValueError, match="stays fenced"):
        state.clear(Obstacle.FENCED)
    assert state.obstacles == {Obstacle.FENCED: "a flush failed"}


def test_one_obstacle_may_not_count() -> None:
    state = StoreState()
    state.check_writable(besides=Obstacle.FOLLOWER)
    state.set(Obstacle.FOLLOWER, "another leads")
    state.check_writable(besides=Obstacle.FOLLOWER)
    with pytest.raises(NotWritable):
        state.check_writable()
    state.set(Obstacle.CLOSED, "closed")
    with pytest.raises(NotWritable):
        state.check_writable(besides=Obstacle.FOLLOWER)
