"""``subscriptionGroup.json``: settings of all consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import from_tree
from kerolox.protocol.bodies.groups import GroupConfig, GroupConfigTable
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.reserved import SYSTEM_GROUPS
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.tables.table import Table, unknown_members, unknown_of_all, with_unknown


class GroupTable(Table):
    """Groups by name, and their restrictions: ``forbidden[group][topic]`` is a set of bits."""

    NAME = "subscriptionGroup.json"

    def __init__(self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(files, directory, clock=clock)
        self.groups: dict[str, GroupConfig] = {}
        self.forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion()
        # State version of the next change: the leader's promotion, under a controller its epoch
        self.state_version = 0
        self._unknown: dict[str, dict[str, Any]] = {}

    def create_system_groups(self) -> None:
        """Create the groups that every broker has. Existing settings stay."""
        for name in SYSTEM_GROUPS:
            if name not in self.groups:
                self.groups[name] = GroupConfig(group_name=name)
                self.changed = True

    def put(self, config: GroupConfig) -> bool:
        """Create or change a group; return False if nothing changes."""
        if self.groups.get(config.group_name) == config:
            return False
        self.groups[config.group_name] = config
        self.bump()
        return True

    def remove(self, name: str) -> GroupConfig | None:
        config = self.groups.pop(name, None)
        self._unknown.pop(name, None)
        forbidden = self.forbidden.pop(name, None)
        if config is not None or forbidden is not None:
            self.bump()
        return config

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """Set the restrictions of a group on a topic; 0 allows everything again."""
        topics = self.forbidden.setdefault(group, {})
        topics[topic] = bits
        if not bits:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        self.bump()

    def replace(
        self,
        groups: Mapping[str, GroupConfig],
        version: DataVersion,
        forbidden: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Replace the table by a leader's, with its version; without ``forbidden`` the restrictions stay."""
        self.groups = dict(groups)
        self.version = version
        self.state_version = version.state_version
        if forbidden is not None:
            self.forbidden = {group: dict(topics) for group, topics in forbidden.items()}
        self.changed = True

    def bump(self) -> None:
        self.version = self.version.next(self._clock.wall_ms(), self.state_version)
        self.changed = True

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, GroupConfigTable)
        for name, config in content.subscription_group_table.items():
            if config.group_name != name:
                raise ProtocolError(f"group {name!r} has the name {config.group_name!r} in its own settings")
        self.groups = dict(content.subscription_group_table)
        self.forbidden = {group: dict(topics) for group, topics in content.forbidden_table.items()}
        self.version = content.data_version
        self.state_version = self.version.state_version
        self._other = unknown_members(tree, GroupConfigTable)
        self._unknown = unknown_of_all(tree.get("subscriptionGroupTable"), GroupConfig)

    def _content(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version,
            "forbiddenTable": self.forbidden,
            "subscriptionGroupTable": with_unknown(self.groups, self._unknown),
        }
