"""What tests of the client share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kerolox import Received
from kerolox.client.admin.calls import AdminCalls, NoSuchTopic
from kerolox.client.admin.lookups import Lookups
from kerolox.client.messages import received
from kerolox.client.nameservers import NameServers
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.compression import decompress
from kerolox.protocol.headers.topic import CreateTopicRequest
from kerolox.testing.broker import RunningBroker


async def wait_for(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def create(running: RunningBroker, topic: str, queues: int = 4, perm: int = 6) -> None:
    async with Dialer() as dialer:
        asked = CreateTopicRequest(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            order=False,
        )
        answer = await dialer.call(running.address, RequestCode.UPDATE_AND_CREATE_TOPIC, asked)
        assert answer.code == 0, answer.remark


async def stored(nameserver: str, topic: str) -> list[Received]:
    """All messages of a topic, queue by queue, in order; none of a topic that is not there."""
    async with Dialer() as dialer:
        lookups = Lookups(AdminCalls(NameServers([nameserver], dialer), dialer))
        found: list[Received] = []
        try:
            queues = await lookups._admin.queues(topic)
        except NoSuchTopic:
            return []
        for queue in queues:
            offset = 0
            while True:
                messages, following, _ = await lookups.pull(topic, queue, offset)
                if not messages:
                    break
                found += [received(message) for message in messages]
                offset = following
        for message in found:
            message.body = decompress(message.body, message.sys_flag)
        return found
