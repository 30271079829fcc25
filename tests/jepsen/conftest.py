"""The network of the tests, where one can be made."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.rig.netns import NoNamespaces

from .cluster import PLACES
from .wires import Wires


@pytest.fixture
def wires() -> Iterator[Wires]:
    """Where networks cannot be made, skip loudly or fail as asked."""
    try:
        made = Wires(PLACES)
    except NoNamespaces as missing:
        message = f"NO NETWORK NAMESPACES: {missing}"
        if os.environ.get("KEROLOX_REQUIRE_NETNS") == "1":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    with made:
        yield made
