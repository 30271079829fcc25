"""Routes and assignments: the queues of a topic, and the addresses at which clients find them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from kerolox.protocol.flags import PERM_READ, PERM_WRITE
from kerolox.protocol.grpc.messages import AddressScheme, MessageType, Permission, make
from kerolox.protocol.grpc.schema import Message
from kerolox.proxy.backend import BrokerQueues

_TYPES = {
    "": (MessageType.NORMAL,),
    "NORMAL": (MessageType.NORMAL,),
    "FIFO": (MessageType.FIFO,),
    "DELAY": (MessageType.DELAY,),
    "TRANSACTION": (MessageType.TRANSACTION,),
    "LITE": (MessageType.LITE,),
    "PRIORITY": (MessageType.PRIORITY,),
    "MIXED": (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
}


def accepted_types(attribute: str) -> tuple[MessageType, ...]:
    """Return what a topic with this ``message.type`` accepts."""
    return _TYPES.get(attribute.upper(), (MessageType.UNSPECIFIED,))


def endpoints_of(host: str, port: int) -> Message:
    """Return the endpoints of one address."""
    try:
        version = ipaddress.ip_address(host.strip("[]")).version
        scheme = AddressScheme.IPV4 if version == 4 else AddressScheme.IPV6
    except ValueError:
        scheme = AddressScheme.DOMAIN_NAME
    return make("Endpoints", scheme=scheme, addresses=[make("Address", host=host.strip("[]"), port=port)])


def read_address(address: str) -> Message:
    """Return the endpoints of an address as ``host:port``."""
    host, _, port = address.rpartition(":")
    return endpoints_of(host, int(port))


def queues_of(topic: Message, brokers: Iterable[tuple[BrokerQueues, Message]]) -> list[Message]:
    """Return the queues of a topic, with the endpoints of each broker."""
    made = []
    for queues, endpoints in brokers:
        types = accepted_types(queues.message_type)
        broker = make("Broker", name=queues.broker_name, id=queues.broker_id, endpoints=endpoints)
        for queue_id, permission in enumerate(_permissions(queues)):
            made.append(
                make(
                    "MessageQueue",
                    topic=topic,
                    id=queue_id,
                    permission=permission,
                    broker=broker,
                    accept_message_types=types,
                )
            )
    return made


def _permissions(queues: BrokerQueues) -> list[Permission]:
    """Return the permission of each queue by its id."""
    reads = queues.read_queues if queues.permission & PERM_READ else 0
    writes = queues.write_queues if queues.permission & PERM_WRITE else 0
    if not reads and not writes:
        return [Permission.NONE] * max(1, queues.read_queues, queues.write_queues)
    by_rights = {
        (True, True): Permission.READ_WRITE,
        (True, False): Permission.READ,
        (False, True): Permission.WRITE,
    }
    return [by_rights[queue_id < reads, queue_id < writes] for queue_id in range(max(reads, writes))]


def assignments_of(
    topic: Message, brokers: Sequence[tuple[BrokerQueues, Message]], *, is_fifo: bool
) -> list[Message]:
    """Return what a push consumer receives from: each broker once, or each queue of a group that consumes in
    order. All members get the same; the brokers divide the messages."""
    made = []
    for queues, endpoints in brokers:
        if queues.broker_id or not queues.permission & PERM_READ or queues.read_queues <= 0:
            continue
        broker = make("Broker", name=queues.broker_name, id=queues.broker_id, endpoints=endpoints)
        writable = queues.permission & PERM_WRITE
        permission = Permission.READ_WRITE if writable else Permission.READ
        for queue_id in range(queues.read_queues) if is_fifo else (-1,):
            queue = make("MessageQueue", topic=topic, id=queue_id, permission=permission, broker=broker)
            made.append(make("Assignment", message_queue=queue))
    return made
