"""Requests about connected clients: lists of them, and questions that are relayed to a client."""

from collections.abc import Mapping
from typing import Any

import msgspec

from kerolox.access.needs.kinds import LOOKS, on
from kerolox.access.needs.names import GET, SUB
from kerolox.broker.base import Base
from kerolox.broker.members.members import Member
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.errors import InvalidRequest, KeroloxError, ProtocolError, RequestTimeout
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.clients import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from kerolox.protocol.codes import VERSION_RELAYED_CALL, RequestCode, ResponseCode, version_name
from kerolox.protocol.header import Header, spelling
from kerolox.protocol.headers.group import ConsumerConnectionRequest, ProducerConnectionRequest
from kerolox.protocol.headers.heartbeat import ConsumeDirectlyRequest, ConsumerRunningInfoRequest
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.record import decode_record
from kerolox.store.errors import CorruptRecord

RELAY_TIMEOUT_S = 10.0


class ClientAdmin:
    """Requests that show connected producers and consumers, and requests that a consumer itself answers."""

    def __init__(self, base: Base, tables: Tables, membership: Membership) -> None:
        self._store = base.store
        self._topics = tables.topics
        self._groups = membership.groups
        self._members = membership.members
        self._options = base.options
        self._guard = base.guard

    # --- connections ----------------------------------------------------------------------------------

    @serves(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnectionRequest, on(GET, group="consumer_group")
    )
    def consumers(self, request: Request[ConsumerConnectionRequest]) -> Answer:
        """Return the connections and subscriptions of a consumer group."""
        group = request.header.consumer_group
        found = self._members.online(group, f"the consumer group[{group}] not online")
        body = ConsumerConnection(
            connection_set=tuple(_connection(member) for member in found.by_caller.values()),
            consume_from_where=found.from_where,
            consume_type=found.consume_type,
            message_model=found.model,
            subscription_table=found.subscriptions,
        )
        return Answer(body=body.encode())

    @serves(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionRequest, LOOKS)
    def producers(self, request: Request[ProducerConnectionRequest]) -> Answer:
        """Return the connections of a producer group."""
        group = request.header.producer_group
        found = self._members.producers.get(group)
        if found is None:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{group}] not exist")
        connections = tuple(_connection(member) for member in found.values())
        return Answer(body=ProducerConnection(connection_set=connections).encode())

    @serves(RequestCode.GET_ALL_PRODUCER_INFO, None, LOOKS)
    def all_producers(self, request: Request[None]) -> Answer:
        """Return the connections of all producers."""
        data = {
            group: tuple(
                ProducerInfo(
                    client_id=member.client_id,
                    language=member.client.language,
                    last_update_timestamp=member.seen_ms,
                    remote_ip=f"/{member.caller.address}",  # as Java writes a socket's address
                    version=member.client.version,
                )
                for member in table.values()
            )
            for group, table in self._members.producers.items()
        }
        return Answer(body=ProducerTable(data=data).encode())

    # --- relayed questions ----------------------------------------------------------------------------

    @serves(
        RequestCode.GET_CONSUMER_RUNNING_INFO, ConsumerRunningInfoRequest, on(GET, group="consumer_group")
    )
    async def running_info(self, request: Request[ConsumerRunningInfoRequest]) -> Answer:
        """Ask a consumer for its state, and return it."""
        asked = request.header
        return await self._relay(request, asked, asked.consumer_group, asked.client_id, b"")

    @serves(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ConsumeDirectlyRequest,
        on(SUB, topic="topic", group="consumer_group"),
    )
    async def consume_directly(self, request: Request[ConsumeDirectlyRequest]) -> Answer:
        """Let a consumer of the group process one message, and return the result."""
        asked = request.header
        if asked.msg_id is None:
            raise InvalidRequest("msgId is missing: name the message to consume")
        config = self._topics.find(asked.topic) if asked.topic else None
        group = self._groups.find(asked.consumer_group)
        relayed = msgspec.structs.replace(
            asked,
            broker_name=self._options.broker_name,
            topic_sys_flag=asked.topic_sys_flag if config is None else config.topic_sys_flag,
            group_sys_flag=asked.group_sys_flag if group is None else group.group_sys_flag,
        )
        place = read_offset_id(asked.msg_id).physical_offset
        try:
            record = await self._store.named.record(place)
            topic = decode_record(record).topic
        except (CorruptRecord, ProtocolError):
            self._guard.check_reading(request, None, asked.consumer_group)
            raise
        self._guard.check_reading(request, topic, asked.consumer_group)
        return await self._relay(request, relayed, asked.consumer_group, asked.client_id or "", record)

    async def _relay(
        self, request: Request[Any], header: Header, group: str, client_id: str, body: bytes
    ) -> Answer:
        """Relay a request to a connected consumer, and return its answer unchanged. Unknown header fields are
        relayed too, except credentials."""
        member = self._members.consumer(group, client_id)
        if member is None:
            return Answer(
                code=ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online"
            )
        if member.client.version < VERSION_RELAYED_CALL:
            return Answer(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"The Consumer <{client_id}> Version <{version_name(member.client.version)}> too low "
                "to finish, please upgrade it to V3_1_8_SNAPSHOT",
            )
        try:
            return await member.caller.call(
                request.code,
                header,
                body,
                timeout_s=RELAY_TIMEOUT_S,
                fields=_beside(header, request.fields_to_relay),
            )
        except RequestTimeout as error:
            return Answer(
                code=ResponseCode.CONSUME_MSG_TIMEOUT,
                remark=f"consumer <{group}> <{client_id}> Timeout: {error}",
            )
        except KeroloxError as error:
            return Answer(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"invoke consumer <{group}> <{client_id}> Exception: {error}",
            )


def _beside(header: Header, fields: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that this type of header does not know."""
    known = {name for _, name in spelling(type(header))}
    return {name: value for name, value in fields.items() if name not in known}


def _connection(member: Member) -> Connection:
    return Connection(
        client_addr=member.caller.address,
        client_id=member.client_id,
        language=member.client.language,
        version=member.client.version,
    )
