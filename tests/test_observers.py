from __future__ import annotations

import pytest

from kerolox.observers import Observers


def test_all_are_called_in_order_though_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    changed: Observers[[str]] = Observers("topic changed")
    got: list[str] = []

    def fail(topic: str) -> None:
        raise ValueError(topic)

    changed.append(lambda topic: got.append(f"first {topic}"))
    changed.append(fail)
    changed.append(lambda topic: got.append(f"last {topic}"))
    for _ in range(5):
        changed("t")
    assert got == ["first t", "last t"] * 5
    assert [record.message.split(" next=")[0] for record in caplog.records] == [
        f"observer_failed event='topic changed' times={times}" for times in (1, 2, 4)
    ]


def test_one_that_leaves_while_it_is_called_takes_nobody_along() -> None:
    changed: Observers[[]] = Observers("changed")
    got: list[int] = []

    def once() -> None:
        got.append(1)
        changed.remove(once)

    changed.append(once)
    changed.append(lambda: got.append(2))
    changed()
    changed()
    assert got == [1, 2, 2]
    assert len(changed) == 1
    assert once not in changed
