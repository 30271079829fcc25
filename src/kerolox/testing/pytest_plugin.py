"""Fixtures for tests of code that uses kerolox. pytest finds them by itself once kerolox is installed.

- ``kerolox_broker``: a name server and a broker of this test alone (a :class:`BrokerThread`). It runs in a
  thread, so it serves blocking tests and async tests of every plugin alike.
- ``kerolox_nameserver``: its name server's address, which is all most code needs.
- ``kerolox_shared_broker``: one broker for all tests of the run: quicker, when each uses topics of its own.

A marker sets how ``kerolox_broker`` is started::

    @pytest.mark.kerolox(brokers=3)
    @pytest.mark.kerolox(followers=1, sync=True)         # then kerolox_broker.kill("broker-a")
    @pytest.mark.kerolox(clock="manual")                 # then kerolox_broker.advance(seconds)
    @pytest.mark.kerolox(transaction_check_ms=1000)      # any option of the broker, by our names
    @pytest.mark.kerolox(transactionCheckInterval=1000)  # or by RocketMQ's keys

Nothing of kerolox is loaded before a test asks for one of these.
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
        "kerolox(brokers=1, followers=0, clock=..., **options): how the fixture kerolox_broker is started",
    )


@pytest.fixture
def kerolox_broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """A broker and its name server, made for this test, in a thread of their own."""
    from kerolox.errors import OptionError
    from kerolox.testing.broker import HOW, broker_settings
    from kerolox.testing.threads import broker_in_thread

    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("kerolox"))):  # the nearest counts last
        if marker.args:
            raise OptionError("pytest.mark.kerolox", marker.args, "keywords alone, as in kerolox(brokers=3)")
        own = dict(marker.kwargs)
        options |= {word: own.pop(word) for word in HOW if word in own}
        options |= broker_settings(own)  # by one name each: a marker may have RocketMQ's key, another ours
    with broker_in_thread(**options) as broker:
        yield broker


@pytest.fixture
def kerolox_nameserver(kerolox_broker: BrokerThread) -> str:
    """The address of the name server of ``kerolox_broker``."""
    return kerolox_broker.nameserver_address


@pytest.fixture(scope="session")
def kerolox_shared_broker() -> Iterator[BrokerThread]:
    """A broker and its name server for all tests of this run."""
    from kerolox.testing.threads import broker_in_thread

    with broker_in_thread() as broker:
        yield broker
