"""Carriers of both kinds, for one suite."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Protocol

from kerolox.controller.carriers.carrier import Carrier
from kerolox.controller.carriers.embedded import EmbeddedCarrier
from kerolox.controller.carriers.etcd import EtcdCarrier
from kerolox.controller.state import RegisteredReplica, ReplicaGroup

from .etcd_kit import EtcdMembers

LEASE_S = 2
_numbers = itertools.count()


def group(name: str = "broker-a", epoch: int = 1) -> ReplicaGroup:
    return ReplicaGroup(
        cluster="c",
        name=name,
        next_id=3,
        replicas={1: RegisteredReplica("10.0.0.1:10911", "x;1"), 2: RegisteredReplica("ü:1", "y;2")},
        master=1,
        master_epoch=epoch,
        in_sync=frozenset({1, 2}),
        in_sync_epoch=7,
    )


class Shelf(Protocol):
    """Where carriers keep one state."""

    def carrier(self) -> Carrier:
        """Another one for the same state, not open yet."""

    def beside(self, carrier: Carrier) -> Carrier:
        """One that waits while this one leads."""

    async def depose(self, carrier: Carrier) -> None:
        """It leads no more."""


class FileShelf:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def carrier(self) -> EmbeddedCarrier:
        return EmbeddedCarrier(self._folder)

    def beside(self, carrier: Carrier) -> Carrier:
        return carrier  # a file has one

    async def depose(self, carrier: Carrier) -> None:
        assert isinstance(carrier, EmbeddedCarrier)
        carrier._set_leader(None)


class EtcdShelf:
    def __init__(self, members: EtcdMembers) -> None:
        self._members = members
        self.group = f"g{next(_numbers)}"
        self.made: list[EtcdCarrier] = []

    def carrier(self, first: str | None = None) -> EtcdCarrier:
        access = self._members.access if first is None else self._members.access_from(first)
        self.made.append(EtcdCarrier(access, group=self.group, lease_s=LEASE_S))
        return self.made[-1]

    def beside(self, carrier: Carrier) -> Carrier:
        return self.carrier()

    async def depose(self, carrier: Carrier) -> None:
        await carrier.close()
