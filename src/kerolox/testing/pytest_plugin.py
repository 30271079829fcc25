"""Fixtures for tests of code that uses kerolox. Switch them on in a ``conftest.py``::

    pytest_plugins = ["kerolox.testing.pytest_plugin"]

Needs pytest-asyncio in its automatic mode, or the fixtures marked by hand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.testing.broker import RunningBroker, running_broker


@pytest.fixture
async def kerolox_broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """A broker and its name server, made for this test."""
    async with running_broker(directory=tmp_path / "kerolox") as running:
        yield running
