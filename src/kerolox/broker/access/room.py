"""Who may do what at a broker: its users and rules, and the guard that asks them."""

from __future__ import annotations

import os

from kerolox.access.needs.broker import BROKER
from kerolox.access.server_access import ServerAccess
from kerolox.broker.access.users import UserRequests
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.topics import Topics
from kerolox.clock import Clock
from kerolox.front.requests import Row
from kerolox.store.tables.groups import GroupTable

FILE = os.path.join("config", "access.json")


class BrokerView:
    """What rules ask of the broker."""

    dead_letters_are_topics = False

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.topics: Topics | None = None
        self.groups: GroupTable | None = None

    def has_topic(self, name: str) -> bool:
        return self.topics is not None and self.topics.find(name) is not None

    def has_group(self, name: str) -> bool:
        return self.groups is not None and name in self.groups.groups


class Access(ServerAccess):
    """The users of a broker are a table of its store, unless the options name a file."""

    def __init__(self, options: BrokerOptions, store_root: str, clock: Clock) -> None:
        self.view = BrokerView(options.cluster)
        super().__init__(options, BROKER, self.view, clock, os.path.join(store_root, FILE))

    def rows(self) -> list[Row]:
        return UserRequests(self.file, self.guard).rows()
