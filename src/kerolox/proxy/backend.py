"""What the service needs of brokers: routes, settings, and a way to send requests as a client's connection.

A broker in the same process and a cluster of brokers provide it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kerolox.front.proof import Proof
from kerolox.front.requests import Answer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import Language
from kerolox.protocol.header import Header


class BrokerQueues(msgspec.Struct, frozen=True):
    """The queues of a topic at one broker."""

    broker_name: str
    broker_id: int
    host: str  # of the broker, as the name server knows it
    permission: int
    read_queues: int
    write_queues: int
    message_type: str  # attribute of the topic; "" if it has none


class Visitor(Protocol):
    """A client of the service, as brokers see it through its link."""

    @property
    def address(self) -> str: ...

    @property
    def language(self) -> Language: ...

    @property
    def version(self) -> int: ...

    def told(self, broker_name: str, code: int, header: Header | None, body: bytes) -> None:
        """Take a one-way request of a broker."""

    async def asked(self, code: int, header: Header | None, body: bytes) -> Answer:
        """Answer a request of a broker."""


class Door(Protocol):
    """The connection by which a call came."""

    @property
    def address(self) -> str: ...

    def close(self, reason: str) -> None: ...


class Link(Protocol):
    """The connection of one client to the brokers. Every request carries the proof of its user."""

    async def ask(
        self,
        broker_name: str,
        code: int,
        header: Header | None,
        body: bytes,
        proof: Proof,
        timeout_s: float,
    ) -> Answer:
        """Send a request to the leader of this name and return its answer, whatever its code. An unknown name
        means any leader."""

    async def ask_all(self, code: int, header: Header | None, body: bytes, proof: Proof) -> list[Answer]:
        """Send a request to every leader that this client uses."""

    async def check_seeing(self, topic: str, proof: Proof) -> Answer | None:
        """Return the rejection if the user may neither send to a topic nor consume it."""

    async def check_sending(self, topic: str, proof: Proof) -> Answer | None:
        """Return the rejection if the user may not send to a topic."""

    async def check_consuming(self, group: str, topic: str, proof: Proof) -> Answer | None:
        """Return the rejection if the user may not consume with a group, from a topic if one is named."""

    def close(self, reason: str) -> None:
        """Close the connection; brokers forget the client."""


class Backend(Protocol):
    """The brokers behind the service."""

    async def queues(self, topic: str) -> Sequence[BrokerQueues] | None:
        """Return the queues of a topic, in a stable order, or None if the topic does not exist."""

    async def group(self, name: str) -> GroupConfig | None:
        """Return the settings of a group, or None if it does not exist."""

    async def admit(self, door: Door, code: int, proof: Proof) -> str | Answer | None:
        """Return the user that makes a call, which becomes requests of this code, or the rejection of a user
        that is not known. None: users are not asked for."""

    def link(self, visitor: Visitor) -> Link:
        """Return a connection for a client."""

    @property
    def is_serving(self) -> bool:
        """True while requests are accepted."""
