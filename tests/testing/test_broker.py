"""The broker that is shipped for tests."""

from __future__ import annotations

from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.routes import ClusterInfo
from kerolox.protocol.codes import RequestCode
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.pytest_plugin import kerolox_broker

__all__ = ["kerolox_broker"]


async def test_the_fixture_gives_a_broker_that_is_registered(kerolox_broker: RunningBroker) -> None:
    async with Dialer() as dialer:
        answer = await dialer.call(kerolox_broker.nameserver_address, RequestCode.GET_BROKER_CLUSTER_INFO)
    table = ClusterInfo.decode(answer.body).broker_addr_table
    assert {name: data.broker_addrs for name, data in table.items()} == {
        "broker-a": {0: kerolox_broker.address}
    }


async def test_two_brokers_share_a_name_server() -> None:
    async with running_broker() as one, running_broker(nameserver=one.nameserver, broker_name="b") as two:
        assert one.nameserver_address == two.nameserver_address
        async with Dialer() as dialer:
            answer = await dialer.call(one.nameserver_address, RequestCode.GET_BROKER_CLUSTER_INFO)
        assert set(ClusterInfo.decode(answer.body).broker_addr_table) == {"broker-a", "b"}
