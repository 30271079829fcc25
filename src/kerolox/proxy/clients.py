"""Clients of the service: their announcements, links to the brokers, and the streams that reach them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from kerolox.clock import Clock, TimerHandle
from kerolox.front.proof import Proof
from kerolox.front.requests import Answer
from kerolox.net.grpc_peer import Call
from kerolox.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
)
from kerolox.protocol.codes import Language, RequestCode, ResponseCode, language_named, request_name
from kerolox.protocol.grpc.messages import Code, make
from kerolox.protocol.grpc.schema import Message
from kerolox.protocol.header import Header
from kerolox.protocol.headers.heartbeat import UnregisterClientRequest
from kerolox.proxy.backend import Backend, Link
from kerolox.proxy.checks import Rejected, check_condition, from_remoting, read_filter, resource_name
from kerolox.proxy.credentials import proof_of
from kerolox.proxy.settings import SIMPLE

log = logging.getLogger(__name__)

SILENT_S_MAX = 120.0  # without a heartbeat or settings; then the brokers forget the client
SCAN_S = 10.0
REPLY_S = 5.0  # time for the answer to a command
ASK_S = 5.0  # time for the answer of a broker
CLIENTS_MAX = 100_000

# A client id is no secret: with users, the same id of another user or address is another client.
ClientKey = tuple[str, str, str]

# The command that a one-way request of a broker (by its name) becomes, if there is one.
Commanded = Callable[[str, int, Header | None, bytes], Message | None]


class Client:
    """One client, by the id that it sends with every call."""

    def __init__(self, key: ClientKey, address: str, now_s: float, command: Commanded) -> None:
        self.key = key
        self.client_id = key[-1]
        self.address = address
        self.language = Language.OTHER
        self.version = 0
        self.sdk_version = ""
        self.settings: Message | None = None  # as the client sent them
        self.seen_s = now_s
        self.stream: Call | None = None  # the Telemetry call that reaches the client
        self.link: Link
        self.producer_groups: set[str] = set()
        self._nonces = count(1)
        self._replies: dict[str, asyncio.Future[Message]] = {}
        self._command = command

    @property
    def is_reachable(self) -> bool:
        return self.stream is not None and self.stream.is_open

    @property
    def is_consumer(self) -> bool:
        return self.settings is not None and self.settings.WhichOneof("pub_sub") == "subscription"

    @property
    def group(self) -> str:
        """The consumer group that the client has announced, or ""."""
        return resource_name(self.settings.subscription.group) if self.is_consumer else ""  # type: ignore[union-attr]

    def send(self, command: Message) -> bool:
        """Send a command over the stream. Return False if there is none."""
        if self.stream is None or not self.stream.is_open:
            return False
        self.stream.send(command.SerializeToString())
        return True

    async def commanded(self, fill: Callable[[Message, str], None]) -> Message | None:
        """Send a command with a nonce and return the reply, or None if none came in time."""
        nonce = str(next(self._nonces))
        command = make("TelemetryCommand")
        fill(command, nonce)
        reply = self._replies[nonce] = asyncio.get_running_loop().create_future()
        try:
            if not self.send(command):
                return None
            async with asyncio.timeout(REPLY_S):
                return await reply
        except TimeoutError:
            return None
        finally:
            del self._replies[nonce]

    def replied(self, nonce: str, command: Message) -> None:
        """Take the reply to a command."""
        waiting = self._replies.get(nonce)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    def told(self, broker_name: str, code: int, header: Header | None, body: bytes) -> None:
        """Pass on a one-way request of a broker; see :class:`kerolox.proxy.backend.Visitor`."""
        command = self._command(broker_name, code, header, body)
        if command is not None:
            self.send(command)

    async def asked(self, code: int, header: Header | None, body: bytes) -> Answer:
        """Pass on a request of a broker; see :class:`kerolox.proxy.backend.Visitor`."""
        name = request_name(code)
        return Answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"{name} cannot be asked of clients that use gRPC"
        )

    def heartbeat(self) -> HeartbeatData:
        """Return what brokers know of the client. Raises Rejected for a filter that does not parse."""
        consumers: tuple[ConsumerData, ...] = ()
        if self.is_consumer:
            consumers = (self._consumer_data(),)
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=tuple(ProducerData(group_name=name) for name in sorted(self.producer_groups)),
            consumer_data_set=consumers,
        )

    def _consumer_data(self) -> ConsumerData:
        assert self.settings is not None
        is_simple = self.settings.client_type in SIMPLE
        entries = []
        for entry in self.settings.subscription.subscriptions:
            entries.append(read_filter(resource_name(entry.topic), entry.expression))
            check_condition(entries[-1])
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_ACTIVELY if is_simple else ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=tuple(entries),
        )


class Visit:
    """A call of a client: the client, and the proof of the user that makes the call."""

    __slots__ = ("client", "proof")

    def __init__(self, client: Client, proof: Proof) -> None:
        self.client = client
        self.proof = proof

    async def check_seeing(self, topic: str) -> None:
        """Raise Rejected unless the user may see a topic."""
        _check(await self.client.link.check_seeing(topic, self.proof))

    async def check_sending(self, topic: str) -> None:
        """Raise Rejected unless the user may send to a topic."""
        _check(await self.client.link.check_sending(topic, self.proof))

    async def check_consuming(self, group: str, topic: str = "") -> None:
        """Raise Rejected unless the user may consume with a group, from a topic if one is named."""
        _check(await self.client.link.check_consuming(group, topic, self.proof))

    async def ask(
        self,
        broker_name: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = ASK_S,
    ) -> Answer:
        """Send a request to a broker as this user."""
        return await self.client.link.ask(broker_name, code, header, body, self.proof, timeout_s)


def _check(refused: Answer | None) -> None:
    if refused is not None:
        raise from_remoting(refused)


class Clients:
    """All clients of the service."""

    def __init__(
        self, backend: Backend, clock: Clock, command: Commanded, gone: Callable[[Client], None]
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._command = command
        self._clients: dict[ClientKey, Client] = {}
        self._scan: TimerHandle | None = None
        self._gone = gone

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def __len__(self) -> int:
        return len(self._clients)

    def start(self) -> None:
        self._scan = self._clock.beat(SCAN_S, self._drop_silent)

    def close(self) -> None:
        if self._scan is not None:
            self._scan.cancel()
        for client in self:
            self.remove(client, "the service stops")

    async def visit(self, call: Call, code: int) -> Visit:
        """Return the client that makes a call, with the proof of its user. ``code``: the request that the
        call becomes. Raises Rejected without an id, and for a user that is not known."""
        metadata = call.head.metadata
        client_id = metadata.get("x-mq-client-id", "").strip()
        if not client_id:
            raise Rejected(
                Code.CLIENT_ID_REQUIRED, "the call has no x-mq-client-id; RocketMQ's clients send one"
            )
        proof, door = proof_of(metadata), call.peer
        user = await self._backend.admit(door, code, proof)
        if isinstance(user, Answer):
            raise from_remoting(user)
        key = ("", "", client_id) if user is None else (user, door.address.rpartition(":")[0], client_id)
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise Rejected(Code.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are connected, the limit")
            client = Client(key, door.address, self._clock.monotonic_s(), self._command)
            self._clients[key] = client
            client.link = self._backend.link(client)
        client.language = _language(metadata.get("x-mq-language", ""))
        client.sdk_version = metadata.get("x-mq-client-version", "")
        return Visit(client, proof)

    async def announce(self, visit: Visit, settings: Message | None, producer_groups: set[str]) -> None:
        """Take the settings of a client and the groups of its producers, and tell the brokers about them.
        Raises Rejected if one refuses; then the client keeps what it had."""
        client = visit.client
        before = client.settings, client.producer_groups
        client.settings, client.producer_groups = settings, producer_groups
        try:
            await self.register(visit)
        except Rejected:
            client.settings, client.producer_groups = before
            raise

    async def register(self, visit: Visit) -> None:
        """Tell the brokers about the client. Raises Rejected if one refuses."""
        client = visit.client
        body = client.heartbeat().encode()
        for answer in await client.link.ask_all(RequestCode.HEART_BEAT, None, body, visit.proof):
            if answer.code != ResponseCode.SUCCESS:
                raise from_remoting(answer)
        client.seen_s = self._clock.monotonic_s()

    async def leave(self, visit: Visit) -> None:
        """Remove a client that says goodbye."""
        client = visit.client
        groups: list[dict[str, Any]] = [{"producer_group": name} for name in sorted(client.producer_groups)]
        if client.is_consumer:
            groups.append({"consumer_group": client.group})
        for group in groups:
            header = UnregisterClientRequest(client_id=client.client_id, **group)
            for answer in await client.link.ask_all(RequestCode.UNREGISTER_CLIENT, header, b"", visit.proof):
                if answer.code != ResponseCode.SUCCESS:
                    raise from_remoting(answer)
        self.remove(client, "the client left")

    def remove(self, client: Client, reason: str) -> None:
        if self._clients.get(client.key) is client:
            del self._clients[client.key]
            client.link.close(reason)
            if client.stream is not None and client.stream.is_open:
                client.stream.finish()
            self._gone(client)

    def _drop_silent(self) -> None:
        now_s = self._clock.monotonic_s()
        for client in self:
            if now_s - client.seen_s > SILENT_S_MAX:
                self.remove(client, f"no heartbeat for {SILENT_S_MAX:g} s")
        self._scan = self._clock.beat(SCAN_S, self._drop_silent)


def _language(text: str) -> Language:
    return language_named({"DOT_NET": "DOTNET", "GOLANG": "GO"}.get(text.upper(), text))
