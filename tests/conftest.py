"""What goes for all tests."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # They share a JVM and so one worker, for minutes: begun last, they would keep the other one waiting.
    items.sort(key=lambda item: not _is_on_spark(item))


def _is_on_spark(item: pytest.Item) -> bool:
    return any("spark" in mark.args for mark in item.iter_markers("xdist_group"))
