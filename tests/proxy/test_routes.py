"""Queues of a topic in routes and assignments: ids, permissions, types, and the brokers that hold them."""

from __future__ import annotations

from typing import Any

import pytest

from kerolox.protocol.grpc.messages import AddressScheme, MessageType, Permission, make
from kerolox.proxy.backend import BrokerQueues
from kerolox.proxy.routes import accepted_types, assignments_of, queues_of, read_address

TOPIC = make("Resource", name="orders")
HERE = read_address("broker.example:8081")
NORMAL, FIFO, DELAY, TRANSACTION = (
    MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION
)  # fmt: skip


def at(permission: int = 6, reads: int = 2, writes: int = 2, broker_id: int = 0) -> list[tuple[Any, Any]]:
    queues = BrokerQueues(
        broker_name="a", broker_id=broker_id, host="h", permission=permission, read_queues=reads,
        write_queues=writes, message_type="",
    )  # fmt: skip
    return [(queues, HERE)]


@pytest.mark.parametrize(
    ("permission", "reads", "writes", "rights"),
    [
        (6, 2, 2, "RW RW"), (4, 2, 2, "R R"), (2, 2, 2, "W W"), (0, 2, 2, "- -"),
        (6, 3, 1, "RW R R"), (6, 1, 3, "RW W W"), (4, 3, 1, "R R R"), (2, 3, 1, "W"),
    ],
)  # fmt: skip
def test_each_queue_has_its_rights(permission: int, reads: int, writes: int, rights: str) -> None:
    found = queues_of(TOPIC, at(permission, reads, writes))
    assert [queue.id for queue in found] == list(range(len(found)))
    short = {
        Permission.READ_WRITE: "RW", Permission.READ: "R", Permission.WRITE: "W", Permission.NONE: "-"
    }  # fmt: skip
    assert " ".join(short[queue.permission] for queue in found) == rights


@pytest.mark.parametrize(
    ("attribute", "types"),
    [
        ("", [NORMAL]), ("NORMAL", [NORMAL]), ("FIFO", [FIFO]), ("delay", [DELAY]),
        ("TRANSACTION", [TRANSACTION]), ("MIXED", [NORMAL, FIFO, DELAY, TRANSACTION]),
        ("LITE", [MessageType.LITE]), ("PRIORITY", [MessageType.PRIORITY]),
        ("else", [MessageType.UNSPECIFIED]),
    ],
)  # fmt: skip
def test_types_that_a_topic_accepts(attribute: str, types: list[MessageType]) -> None:
    assert list(accepted_types(attribute)) == types


def test_followers_have_their_id_and_are_not_assigned() -> None:
    (queue,) = queues_of(TOPIC, at(reads=1, writes=1, broker_id=2))
    assert queue.broker.id == 2
    assert assignments_of(TOPIC, at(broker_id=2), is_fifo=False) == []


def test_assignments_need_queues_that_can_be_read() -> None:
    assert assignments_of(TOPIC, at(permission=2), is_fifo=False) == []
    assert assignments_of(TOPIC, at(reads=0), is_fifo=True) == []
    ids = [one.message_queue.id for one in assignments_of(TOPIC, at(reads=3), is_fifo=True)]
    assert ids == [0, 1, 2]


@pytest.mark.parametrize(
    ("address", "scheme", "host"),
    [
        ("10.0.0.1:80", AddressScheme.IPV4, "10.0.0.1"),
        ("[::1]:80", AddressScheme.IPV6, "::1"),
        ("mq.example:80", AddressScheme.DOMAIN_NAME, "mq.example"),
    ],
)
def test_forms_of_addresses(address: str, scheme: AddressScheme, host: str) -> None:
    found = read_address(address)
    assert found.scheme == scheme
    assert (found.addresses[0].host, found.addresses[0].port) == (host, 80)
