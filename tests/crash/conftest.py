"""One nursery serves the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .nursery import Nursery


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made
