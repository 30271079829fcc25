"""The targets of the client's scenarios: every one runs against our servers and against Apache's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.topics import TopicConfig

from ..scenarios.cluster import Broker, Certificate, Cluster, Kind

T = TypeVar("T")

# Open transactions are asked about soon and often: the scenarios wait for it.
SETTINGS = {
    "autoCreateTopicEnable": True,
    "traceTopicEnable": True,
    "recallMessageEnable": True,
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 1000,
    "transactionOpBatchInterval": 100,
    "enablePropertyFilter": True,
    # Retries begin with the third.
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s",
}


class Target:
    """A name server and a broker to be a client of."""

    def __init__(self, cluster: Cluster, broker: Broker) -> None:
        self.cluster = cluster
        self.broker = broker
        self.kind = cluster.kind
        self.nameserver = cluster.nameserver
        self.is_apache_4 = cluster.is_apache_4

    async def create_topic(self, topic: str, queues: int = 4, *, broker: Broker | None = None) -> str:
        """Create it, and wait until the name server knows."""
        async with Dialer() as dialer:
            admin = AdminCalls(NameServers([self.nameserver], dialer), dialer)
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6)
            await admin.put_topic((broker or self.broker).address, config)
            async with asyncio.timeout(30):
                while True:
                    try:
                        if len(await admin.queues(topic)) >= queues:
                            return topic
                    except Exception:
                        pass
                    await asyncio.sleep(0.05)

    def __repr__(self) -> str:
        return f"<target {self.kind} {self.nameserver}>"


@pytest.fixture(scope="session")
def scenario_certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("client-certificate"))


@pytest.fixture(scope="session", params=["apache", "ours"])  # ours last: it costs less to stay
def target(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    scenario_certificate: Certificate,
) -> Iterator[Target]:
    """Shared by all scenarios of one kind: do not stop its servers."""
    kind: Kind = request.param
    # Ours need no Java.
    java = request.getfixturevalue("java_session") if kind == "apache" else None
    home = tmp_path_factory.mktemp(f"client-{kind}")
    cluster = Cluster(kind, java, home, scenario_certificate, properties=SETTINGS)
    yield Target(cluster, cluster.broker)
    cluster.finish()


@pytest.fixture
def topic_name(unique: Callable[[str], str]) -> str:
    return unique("topic")


def now(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own, for scenarios without await."""
    return asyncio.run(work)
