"""Administration, at a broker that does it the way 4.x did."""

from __future__ import annotations

import pytest

from kerolox import Message, Producer, PushConsumer, PushOptions, Received
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.errors import RequestFailed
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.testing.broker import running_broker
from tests.client.kit import wait_for


async def test_a_reset_that_members_carry_out() -> None:
    async with running_broker(server_side_reset=False) as running, Dialer() as dialer:
        await running.create_topic("orders", queues=2)
        admin = AdminCalls(NameServers([running.nameserver_address], dialer), dialer)
        with pytest.raises(RequestFailed, match="not exist"):
            await admin.reset("nobody", "orders", 0)
        await admin.put_group(running.address, GroupConfig(group_name="billing"))
        async with Producer(running.nameserver_address, group="shop") as producer:
            await producer.send_batch([Message("orders", "a"), Message("orders", "b")])
            # It has no progress, and nobody is there to be told.
            assert sorted((await admin.reset("billing", "orders", 0)).values()) == [0, 0]
            progress = await admin.progress("billing", "orders")
            assert [each.consumer_offset for each in progress.values()] == [0, 0]
            seen: list[Received] = []
            async with PushConsumer(
                running.nameserver_address, group="billing", options=PushOptions(start="first")
            ) as consumer:
                consumer.subscribe("orders", seen.append)
                await wait_for(lambda: len(seen) == 2)
                await admin.reset("billing", "orders", 0)
                await wait_for(lambda: len(seen) == 4)
        assert sorted(message.text for message in seen) == ["a", "a", "b", "b"]
