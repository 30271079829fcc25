from __future__ import annotations

import pytest
from tests.store.ends import Ends

from kerolox.store.log.progress import Progress


@pytest.mark.parametrize(
    ("wait_for_flush", "committed", "flushed", "replicated", "confirmed"),
    [
        (False, 10, 0, None, 10),
        (True, 10, 0, None, 0),
        (True, 10, 7, None, 7),
        (False, 10, 0, 4, 4),
        (True, 10, 7, 4, 4),
        (True, 10, 3, 4, 3),
        (False, 10, 0, 12, 10),
    ],
)
def test_what_may_be_seen(
    wait_for_flush: bool, committed: int, flushed: int, replicated: int | None, confirmed: int
) -> None:
    progress = Progress(Ends(20, committed, flushed), wait_for_flush=wait_for_flush)
    progress.replicated = replicated
    progress.advance()
    assert progress.confirmed == confirmed


def test_followers_are_woken_only_when_more_is_confirmed() -> None:
    ends = Ends()
    progress = Progress(ends, wait_for_flush=True)
    woken: list[int] = []
    progress.on_confirmed.append(lambda: woken.append(progress.confirmed))
    ends.committed = 10
    progress.advance()
    ends.flushed = 5
    progress.advance()
    progress.advance()
    ends.flushed = 3  # never falls back
    progress.advance()
    assert woken == [5]
    assert progress.confirmed == 5


@pytest.mark.parametrize("replicated", [None, 3])
def test_reset(replicated: int | None) -> None:
    progress = Progress(Ends(100, 100, 100), wait_for_flush=False)
    progress.replicated = replicated
    progress.reset()
    assert (progress.appended, progress.committed, progress.flushed, progress.confirmed) == (100,) * 4
    assert progress.replicated == (None if replicated is None else 100)
    assert repr(progress).startswith("<appended 100, committed 100, flushed 100")


def test_who_copies_is_woken_when_more_is_in_the_file() -> None:
    ends = Ends()
    progress = Progress(ends, wait_for_flush=True)
    woken: list[int] = []
    progress.on_committed.append(lambda: woken.append(progress.committed))
    ends.committed = 10
    progress.advance()
    ends.flushed = 10
    progress.advance()
    progress.cut(4)
    ends.committed = 7  # other bytes than before
    progress.advance()
    assert woken == [10, 7]
