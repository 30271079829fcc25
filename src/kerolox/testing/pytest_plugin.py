"""Fixtures for tests of code that uses kerolox. pytest finds them automatically once kerolox is installed.

- ``kerolox_broker``: a name server and a broker only for this test (a :class:`BrokerThread`). It runs in a
  thread, so it serves blocking tests and async tests of every plugin.
- ``kerolox_nameserver``: its name server's address, which is all that most code needs.
- ``kerolox_shared_broker``: one broker for all tests of the run: faster, if each test uses its own topics.

A marker configures ``kerolox_broker``::

    @pytest.mark.kerolox(brokers=3)
    @pytest.mark.kerolox(followers=1, sync=True)         # then kerolox_broker.kill("broker-a")
    @pytest.mark.kerolox(clock="manual")                 # then kerolox_broker.advance(seconds)
    @pytest.mark.kerolox(transaction_check_ms=1000)      # any option of the broker, by kerolox's names
    @pytest.mark.kerolox(transactionCheckInterval=1000)  # or by RocketMQ's keys

No module of kerolox is loaded before a test uses one of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kerolox.testing.threads import BrokerThread


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "kerolox(brokers=1, followers=0, clock=..., **options): configure the fixture kerolox_broker",
    )


@pytest.fixture
def kerolox_broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """Broker and its name server, created for this test, in a separate thread."""
    from kerolox.errors import OptionError
    from kerolox.testing.broker import HOW, broker_settings
    from kerolox.testing.threads import broker_in_thread

    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("kerolox"))):  # the nearest marker is applied last
        if marker.args:
            raise OptionError("pytest.mark.kerolox", marker.args, "only keywords, as in kerolox(brokers=3)")
        own = dict(marker.kwargs)
        options |= {word: own.pop(word) for word in HOW if word in own}
        # Normalised, because one marker may use RocketMQ's key and another kerolox's name
        options |= broker_settings(own)
    with broker_in_thread(**options) as broker:
        yield broker


@pytest.fixture
def kerolox_nameserver(kerolox_broker: BrokerThread) -> str:
    """Address of the name server of ``kerolox_broker``."""
    return kerolox_broker.nameserver_address


@pytest.fixture(scope="session")
def kerolox_shared_broker() -> Iterator[BrokerThread]:
    """Broker and its name server, shared by all tests of this run."""
    from kerolox.testing.threads import broker_in_thread

    with broker_in_thread() as broker:
        yield broker
