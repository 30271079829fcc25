"""What the Spark tests share: one JVM and one broker for a run, since starting them is what costs.

Tests keep apart by topic names: ``topic`` is one that nobody else has, ``new_topic`` makes more. All tests
that take ``spark`` run in one worker of pytest-xdist.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from kerolox.blocking import Producer
from kerolox.client.messages import Message, Receipt
from kerolox.testing.threads import BrokerThread, broker_in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "spark"
# Compiled only roughly: most of a short run's time is the compiler's.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_numbers = itertools.count()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(GROUP))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores whose tasks are tried twice. It has all that could tell a secret: a web page,
    and a log of events that can be read."""
    from kerolox.spark.session import session, stop

    conf = {
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": tmp_path_factory.mktemp("events").as_uri(),
    }
    yield session("kerolox-tests", "local[2,2]", ui=True, conf=conf)
    stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerThread]:
    """A name server and a broker for all tests."""
    with broker_in_thread() as running:
        yield running


@pytest.fixture
def new_topic(broker: BrokerThread) -> Callable[..., str]:
    """``new_topic()``, ``new_topic(queues=1)``: makes a topic that nobody else uses."""

    def make(queues: int = 4) -> str:
        name = f"spark-{os.getpid()}-{next(_numbers)}"
        broker.create_topic(name, queues=queues)
        return name

    return make


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    """A topic with 4 queues that nobody else uses."""
    return new_topic()


@pytest.fixture
def send(broker: BrokerThread) -> Iterator[Callable[[Sequence[Message]], list[Receipt]]]:
    """``send([Message(...), ...])``: sends them, in turn over the queues; tells where each went."""
    with Producer(broker.nameserver_address, group="spark-tests") as producer:
        yield producer.send_many
