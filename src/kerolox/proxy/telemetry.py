"""Telemetry: the stream over which a client announces its settings and takes commands."""

from __future__ import annotations

import asyncio
import logging

from kerolox.errors import KeroloxError
from kerolox.net.grpc_peer import Call
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.grpc.calls import CallFailed, GrpcStatus
from kerolox.protocol.grpc.messages import Code, make, parse
from kerolox.protocol.grpc.schema import Message
from kerolox.proxy.backend import Backend
from kerolox.proxy.checks import Rejected, check_group, check_topic, resource_name
from kerolox.proxy.clients import Client, Clients, Visit
from kerolox.proxy.settings import answer_settings

log = logging.getLogger(__name__)

WAITING_MAX = 64  # commands of one client that wait to be handled


class Telemetry:
    """Telemetry calls of all clients."""

    def __init__(self, backend: Backend, clients: Clients) -> None:
        self._backend = backend
        self._clients = clients

    def begin(self, call: Call) -> TelemetryCall:
        call.open()  # some clients wait for the headers before they send anything
        return TelemetryCall(self, call)

    async def visit(self, call: Call) -> Visit:
        return await self._clients.visit(call, RequestCode.HEART_BEAT)

    async def settle(self, visit: Visit, call: Call, settings: Message) -> None:
        """Take a client's settings and answer them. Raises Rejected."""
        client = visit.client
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            raise CallFailed(
                GrpcStatus.INVALID_ARGUMENT, "the settings are neither a producer's nor a consumer's"
            )
        group = None
        topics = set(client.producer_groups)
        if kind == "publishing":
            topics |= {check_topic(resource_name(topic)) for topic in settings.publishing.topics}
            for topic in topics:  # brokers ask any producer of a topic about its transactions
                await visit.check_sending(topic)
        else:
            name = check_group(resource_name(settings.subscription.group))
            await visit.check_consuming(name)
            group = await self._backend.group(name)
        await self._clients.announce(visit, settings, topics)
        if client.stream is not call:
            before, client.stream = client.stream, call
            if before is not None and before.is_open:
                before.finish()
        answer = make(
            "TelemetryCommand",
            status=make("Status", code=Code.OK, message="OK"),
            settings=answer_settings(settings, group),
        )
        if call.is_open:
            call.send(answer.SerializeToString())


class TelemetryCall:
    """One Telemetry stream. Its commands are handled one after the other."""

    def __init__(self, telemetry: Telemetry, call: Call) -> None:
        self._telemetry = telemetry
        self._call = call
        self._waiting: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._is_half_closed = False

    def message(self, data: bytes) -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise CallFailed(
                GrpcStatus.RESOURCE_EXHAUSTED, f"{WAITING_MAX} commands wait already: send fewer"
            )
        self._waiting.append(data)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._handle())

    def half_closed(self) -> None:
        self._is_half_closed = True
        if self._task is None:
            self._finish()

    def cancelled(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._forget()

    def _forget(self) -> None:
        client = self._client
        if client is not None and client.stream is self._call:
            client.stream = None

    def _finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        self._forget()
        if self._call.is_open:
            self._call.finish(status, text)

    async def _handle(self) -> None:
        try:
            while self._waiting:
                await self._take(self._waiting.pop(0))
            self._task = None
            if self._is_half_closed:
                self._finish()
        except CallFailed as failed:
            self._finish(failed.status, str(failed))
        except Rejected as refused:
            self._refuse(refused)
        except KeroloxError as error:
            self._finish(GrpcStatus.INTERNAL, str(error))
        except Exception as error:
            log.exception("telemetry_failed peer=%s", self._call.peer.address)
            self._finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")

    def _refuse(self, refused: Rejected) -> None:
        """Tell the client why, in both ways that clients look at, and end the stream."""
        if self._call.is_open:
            status = make("Status", code=refused.status, message=str(refused))
            self._call.send(make("TelemetryCommand", status=status).SerializeToString())
        is_clients = 40_000 <= refused.status < 50_000
        status_of_call = GrpcStatus.INVALID_ARGUMENT if is_clients else GrpcStatus.INTERNAL
        self._finish(status_of_call, f"{refused.status.name} ({refused.status:d}): {refused}")

    async def _take(self, data: bytes) -> None:
        try:
            command = parse("TelemetryCommand", data)
        except ValueError as error:
            raise CallFailed(GrpcStatus.INTERNAL, str(error)) from error
        visit = await self._telemetry.visit(self._call)
        client = self._client = visit.client
        kind = command.WhichOneof("command")
        if kind == "settings":
            await self._telemetry.settle(visit, self._call, command.settings)
        elif kind in ("thread_stack_trace", "verify_message_result"):
            client.replied(getattr(command, kind).nonce, command)
        else:
            log.debug("telemetry_ignored client=%s command=%s", client.client_id, kind)
