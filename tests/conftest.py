"""What goes for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from .leaks import Leaks

# The gate tries the same examples every time; others are for `make fuzz`, which looks for faults.
settings.register_profile("same", derandomize=True, print_blob=True)
settings.register_profile("random", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("KEROLOX_EXAMPLES", "same"))


def pytest_configure(config: pytest.Config) -> None:
    leaks = Leaks()
    config.pluginmanager.register(leaks, "kerolox-leaks")
    leaks.start()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # They share a JVM and so one worker, for minutes: begun last, they would keep the other one waiting.
    items.sort(key=lambda item: not _is_on_spark(item))


def _is_on_spark(item: pytest.Item) -> bool:
    return any("spark" in mark.args for mark in item.iter_markers("xdist_group"))
