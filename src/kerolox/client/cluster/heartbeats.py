"""Heartbeats: the identity and the subscriptions of a client, sent to every broker of its routes.

The first heartbeat is the first request over a new connection, so that the broker can send its own requests,
such as transaction checks. Further ones follow every 30 seconds. A short form (5.x) repeats the subscriptions
only after a change.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from kerolox.client.errors import failure
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command, request
from kerolox.protocol.headers.heartbeat import HeartbeatAnswer
from kerolox.protocol.java import java_hash

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.client.cluster.client import Client
    from kerolox.net.peer import Peer

log = logging.getLogger(__name__)

# Every client of RocketMQ has an internal producer of this group.
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"


class Heartbeats:
    """Heartbeats of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._confirmed: dict[Peer, int] = {}  # connection → fingerprint a broker has confirmed
        self.versions: dict[str, int] = {}  # address → version of the broker there
        self.failures: dict[str, int] = {}  # address → consecutive failures

    def data(self) -> HeartbeatData:
        """Return the body of the next heartbeat."""
        consumers: list[ConsumerData] = []
        for consumer in self._client.consumers.values():
            wants = consumer.heartbeat()
            if wants is not None:
                consumers.append(wants)
        return HeartbeatData(
            client_id=self._client.client_id,
            producer_data_set=tuple(
                ProducerData(group_name=group) for group in (INNER_PRODUCER, *self._client.producers)
            ),
            consumer_data_set=tuple(consumers),
        )

    def greet(self, address: str, peer: Peer) -> None:
        """Send a heartbeat over a new connection, without waiting for the response."""
        self.tell(address, peer, self.data())

    def tell_all(self, connections: Iterable[tuple[str, Peer]]) -> list[asyncio.Future[bool]]:
        data = self.data()
        return [self.tell(address, peer, data) for address, peer in connections]

    def forget(self, peer: Peer) -> None:
        self._confirmed.pop(peer, None)

    def tell(
        self, address: str, peer: Peer, data: HeartbeatData, *, is_full: bool = False
    ) -> asyncio.Future[bool]:
        """Send a heartbeat. The result of the future is True if the broker accepted it."""
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        fingerprint = 0
        if self._client.options.heartbeat_v2 and data.consumer_data_set:
            fingerprint = fingerprint_of(data)
            data = msgspec.structs.replace(data, heartbeat_fingerprint=fingerprint)
            if not is_full and self._confirmed.get(peer) == fingerprint:
                data = short_form(data)

        def on_answer(answer: Command | Exception) -> None:
            taken = not isinstance(answer, Exception) and answer.code == ResponseCode.SUCCESS
            if not accepted.done():
                accepted.set_result(taken)
            if isinstance(answer, Exception):
                self.failed(address, answer)
                return
            if not taken:
                self.failed(address, failure(answer, address=address, code=RequestCode.HEART_BEAT))
                return
            self.failures.pop(address, None)
            self.versions[address] = answer.version
            if not fingerprint or peer.is_closed:
                return
            header = answer.header(HeartbeatAnswer)
            if header.supports_v2 and not (data.without_sub and header.subscription_changed):
                self._confirmed[peer] = fingerprint
            else:
                self._confirmed.pop(peer, None)
                if data.without_sub:
                    self.tell(address, peer, self.data(), is_full=True)

        try:
            command = request(
                RequestCode.HEART_BEAT, None, data.encode(), opaque=peer.next_opaque(), encoding=peer.encoding
            )
            peer.ask(command, on_answer, self._client.options.request_timeout_s)
        except KeroloxError as error:
            self.failed(address, error)
            accepted.set_result(False)
        return accepted

    def failed(self, address: str, error: Exception) -> None:
        count = self.failures[address] = self.failures.get(address, 0) + 1
        if count & (count - 1) == 0:  # repeated failures are counted, not logged each time
            log.warning("heartbeat_failed broker=%s times=%d error=%r", address, count, str(error))


def fingerprint_of(data: HeartbeatData) -> int:
    """Return a number that changes with the subscriptions."""
    bare = msgspec.structs.replace(
        data,
        client_id="",
        heartbeat_fingerprint=0,
        without_sub=False,
        consumer_data_set=tuple(
            msgspec.structs.replace(
                consumer,
                subscription_data_set=tuple(
                    msgspec.structs.replace(wanted, sub_version=0)
                    for wanted in sorted(consumer.subscription_data_set, key=lambda wanted: wanted.topic)
                ),
            )
            for consumer in sorted(data.consumer_data_set, key=lambda consumer: consumer.group_name)
        ),
    )
    return java_hash(bare.encode()) or 1  # 0 means no fingerprint


def short_form(data: HeartbeatData) -> HeartbeatData:
    """Return the heartbeat without subscriptions."""
    return msgspec.structs.replace(
        data,
        without_sub=True,
        consumer_data_set=tuple(
            msgspec.structs.replace(consumer, subscription_data_set=()) for consumer in data.consumer_data_set
        ),
    )
