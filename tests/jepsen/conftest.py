"""The network and the disks of the tests, where they can be made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.rig.netns import NoNamespaces

from .cluster import PLACES, Ground
from .stage import standing
from .wires import Wires


def missing(what: object) -> NoReturn:
    """Skip loudly, or fail as asked."""
    message = f"NO NETWORK NAMESPACES: {what}"
    if os.environ.get("KEROLOX_REQUIRE_NETNS") == "1":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture
def wires() -> Iterator[Wires]:
    try:
        made = Wires(PLACES)
    except NoNamespaces as error:
        missing(error)
    with made:
        yield made


@pytest.fixture
def ground(wires: Wires, tmp_path: Path) -> Iterator[Ground]:
    try:
        made = standing(wires, tmp_path)
        on = made.__enter__()
    except NoNamespaces as error:
        missing(error)
    try:
        yield on
    finally:
        made.__exit__(None, None, None)
