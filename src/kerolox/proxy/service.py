"""The service ``apache.rocketmq.v2.MessagingService``: its calls, and who answers them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.net.grpc_peer import Call, CallHandler, GrpcPeer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.grpc.calls import CallFailed, GrpcStatus
from kerolox.protocol.grpc.messages import SERVICE, Code, make, parse
from kerolox.protocol.grpc.schema import Message
from kerolox.protocol.header import Header
from kerolox.protocol.headers.transaction import CheckTransaction
from kerolox.proxy.backend import Backend, BrokerQueues
from kerolox.proxy.checks import Rejected, check_group, check_topic, resource_name
from kerolox.proxy.clients import Clients, Visit
from kerolox.proxy.half_messages import HalfMessages
from kerolox.proxy.pops import Pops
from kerolox.proxy.receiving import Receiving
from kerolox.proxy.renewals import Renewals
from kerolox.proxy.routes import assignments_of, queues_of, read_address
from kerolox.proxy.sending import Sending
from kerolox.proxy.telemetry import Telemetry
from kerolox.proxy.transactions import Transactions

log = logging.getLogger(__name__)

HEALTH: Final = "/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING, _UNKNOWN_SERVICE = b"\x08\x01", b"\x08\x02", b"\x08\x03"

Unary = Callable[[Visit, Message], Awaitable[Message]]

# The request of remoting that a call becomes. The guard's log names it.
_CODES: Final = {
    "QueryRoute": RequestCode.GET_ROUTEINFO_BY_TOPIC,
    "QueryAssignment": RequestCode.QUERY_ASSIGNMENT,
    "Heartbeat": RequestCode.HEART_BEAT,
    "NotifyClientTermination": RequestCode.UNREGISTER_CLIENT,
    "SendMessage": RequestCode.SEND_MESSAGE_V2,
    "RecallMessage": RequestCode.RECALL_MESSAGE,
    "EndTransaction": RequestCode.END_TRANSACTION,
    "ReceiveMessage": RequestCode.POP_MESSAGE,
    "AckMessage": RequestCode.ACK_MESSAGE,
    "ChangeInvisibleDuration": RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    "ForwardMessageToDeadLetterQueue": RequestCode.CONSUMER_SEND_MSG_BACK,
}


class Addresses(msgspec.Struct, frozen=True):
    """How clients reach the service."""

    advertised: str | None = None  # HOST:PORT; None: the address that the client used


class Service:
    """All calls of the service."""

    def __init__(self, backend: Backend, clock: Clock, *, addresses: Addresses) -> None:
        self._backend = backend
        self._clock = clock
        self._addresses = addresses
        self._halves = HalfMessages()
        self._transactions = Transactions(self._halves)
        self._pops = Pops(clock.wall_ms)
        self._renewals = Renewals(self._pops, clock)
        self.clients = Clients(backend, clock, self._told, self._renewals.gone)
        sending = Sending(backend, self.clients, self._halves, clock.wall_ms)
        self._receiving = Receiving(backend, self._pops, self._renewals, clock.wall_ms)
        self._telemetry = Telemetry(backend, self.clients)
        self._calls: set[UnaryCall] = set()
        self._is_closing = False
        self._unary: dict[str, Unary] = {
            "QueryRoute": self._query_route,
            "QueryAssignment": self._query_assignment,
            "Heartbeat": self._heartbeat,
            "NotifyClientTermination": self._terminate,
            "SendMessage": sending.send,
            "RecallMessage": sending.recall,
            "EndTransaction": self._transactions.end,
            "AckMessage": self._receiving.ack,
            "ChangeInvisibleDuration": self._receiving.change,
            "ForwardMessageToDeadLetterQueue": self._receiving.give_up,
        }

    def start(self) -> None:
        self.clients.start()
        self._renewals.start()

    async def close(self) -> None:
        """Take no more calls. What clients work on becomes visible again soon."""
        self._is_closing = True
        await self._renewals.close()
        await self._receiving.close()
        self.clients.close()

    # --- calls -------------------------------------------------------------------------------------

    def begin(self, call: Call) -> CallHandler:
        """See :class:`kerolox.net.grpc_peer.GrpcService`."""
        if self._is_closing:
            raise CallFailed(GrpcStatus.UNAVAILABLE, "the server stops")
        path = call.head.path
        service, _, name = path.rpartition("/")
        if service == f"/{SERVICE}":
            if name == "Telemetry":
                return self._telemetry.begin(call)
            if name == "ReceiveMessage":
                return UnaryCall(self, call, name, self._receive)
            if name in self._unary:
                return UnaryCall(self, call, name, self._answer)
        if path == HEALTH:
            return HealthCall(call, self._backend)
        raise CallFailed(GrpcStatus.UNIMPLEMENTED, f"{path[:200]} is not served here")

    def connected(self, peer: GrpcPeer) -> None:
        log.debug("grpc_connected peer=%s", peer.address)

    def closed(self, peer: GrpcPeer, reason: str) -> None:
        log.debug("grpc_closed peer=%s reason=%r", peer.address, reason)

    async def _answer(self, call: Call, name: str, data: bytes) -> None:
        """Answer a unary call."""
        response: Message
        try:
            asked = _parsed(f"{name}Request", data)
            visit = await self.clients.visit(call, _CODES[name])
            response = await self._unary[name](visit, asked)
        except Rejected as refused:
            response = make(f"{name}Response")
            response.status.code, response.status.message = refused.status, str(refused)
        if call.is_open:
            call.send(response.SerializeToString())
            call.finish()

    async def _receive(self, call: Call, name: str, data: bytes) -> None:
        """Answer ReceiveMessage, with a stream of messages."""
        try:
            asked = _parsed("ReceiveMessageRequest", data)
            visit = await self.clients.visit(call, _CODES[name])
            await self._receiving.receive(visit, call, asked, self._clock.monotonic_s())
        except Rejected as refused:
            if call.is_open:
                self._receiving.refuse(call, refused)

    # --- routes ------------------------------------------------------------------------------------

    async def _query_route(self, visit: Visit, asked: Message) -> Message:
        topic = check_topic(resource_name(asked.topic))
        await visit.check_seeing(topic)
        brokers = await self._places(topic, asked.endpoints)
        response = make("QueryRouteResponse", status=_OK)
        response.message_queues.extend(queues_of(asked.topic, brokers))
        return response

    async def _query_assignment(self, visit: Visit, asked: Message) -> Message:
        topic = check_topic(resource_name(asked.topic))
        group = check_group(resource_name(asked.group))
        await visit.check_consuming(group, topic)
        config = await self._backend.group(group)
        is_fifo = config is not None and config.consume_message_orderly
        found = assignments_of(asked.topic, await self._places(topic, asked.endpoints), is_fifo=is_fifo)
        if not found:
            raise Rejected(Code.FORBIDDEN, f"topic {topic!r} has no readable queue")
        response = make("QueryAssignmentResponse", status=_OK)
        response.assignments.extend(found)
        return response

    async def _places(self, topic: str, asked: Message) -> list[tuple[BrokerQueues, Message]]:
        """Return the brokers of a topic with the addresses at which this client finds them: the one that is
        configured, or the one that the client has used."""
        brokers = await self._backend.queues(topic)
        if brokers is None:
            raise Rejected(
                Code.TOPIC_NOT_FOUND,
                f"topic {topic!r} does not exist. Create it: kerolox topic create {topic}",
            )
        endpoints = asked
        if self._addresses.advertised is not None:
            endpoints = read_address(self._addresses.advertised)
        elif not asked.addresses or not asked.scheme:
            raise Rejected(Code.BAD_REQUEST, "the request does not say which address the client uses")
        return [(broker, endpoints) for broker in brokers]

    # --- clients ------------------------------------------------------------------------------------

    async def _heartbeat(self, visit: Visit, asked: Message) -> Message:
        if asked.HasField("group"):
            await visit.check_consuming(check_group(resource_name(asked.group)))
        # A client without settings (the service was restarted) sends them later: until then it is served.
        await self.clients.register(visit)
        return make("HeartbeatResponse", status=_OK)

    async def _terminate(self, visit: Visit, asked: Message) -> Message:
        if asked.HasField("group"):
            await visit.check_consuming(check_group(resource_name(asked.group)))
        await self.clients.leave(visit)
        return make("NotifyClientTerminationResponse", status=_OK)

    def _told(self, broker_name: str, code: int, header: Header | None, body: bytes) -> Message | None:
        """Return the command that a broker's one-way request to a client becomes."""
        if code == RequestCode.CHECK_TRANSACTION_STATE and isinstance(header, CheckTransaction):
            return self._transactions.check(header, body, broker_name)
        return None


_OK = make("Status", code=Code.OK, message="OK")


def _parsed(name: str, data: bytes) -> Message:
    try:
        return parse(name, data)
    except ValueError as error:
        raise CallFailed(GrpcStatus.INTERNAL, str(error)) from error


class UnaryCall:
    """A call with one message from the client. Its answer is the work of a task."""

    def __init__(
        self, service: Service, call: Call, name: str, answer: Callable[[Call, str, bytes], Awaitable[None]]
    ) -> None:
        self._service = service
        self._call = call
        self._name = name
        self._answer = answer
        self._data: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def message(self, data: bytes) -> None:
        if self._data is not None:
            raise CallFailed(GrpcStatus.INTERNAL, f"{self._name} takes one message, a second one came")
        self._data = data

    def half_closed(self) -> None:
        if self._data is None:
            raise CallFailed(GrpcStatus.INTERNAL, f"{self._name} takes one message, none came")
        self._task = asyncio.get_running_loop().create_task(self._run(self._data))
        self._service._calls.add(self)

    def cancelled(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, data: bytes) -> None:
        call = self._call
        try:
            await self._answer(call, self._name, data)
        except CallFailed as failed:
            if call.is_open:
                call.finish(failed.status, str(failed))
        except KeroloxError as error:
            status = make("Status", code=Code.INTERNAL_SERVER_ERROR, message=str(error))
            if call.is_open:
                call.send(make(f"{self._name}Response", status=status).SerializeToString())
                call.finish()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("call_failed call=%s peer=%s", self._name, call.peer.address)
            if call.is_open:
                call.finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")
        finally:
            self._service._calls.discard(self)


class HealthCall:
    """A call of the health service (``grpc.health.v1``)."""

    def __init__(self, call: Call, backend: Backend) -> None:
        self._call = call
        self._backend = backend

    def message(self, data: bytes) -> None:
        name = data[2:].decode("utf-8", "replace")  # one field of text
        if name not in ("", SERVICE):
            raise CallFailed(GrpcStatus.NOT_FOUND, f"service {name[:200]!r} is not served here")
        self._call.send(_SERVING if self._backend.is_serving else _NOT_SERVING)

    def half_closed(self) -> None:
        self._call.finish()

    def cancelled(self) -> None:
        return
