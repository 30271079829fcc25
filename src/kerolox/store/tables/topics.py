"""``topics.json``: settings of all topics of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import Body, from_tree
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig
from kerolox.protocol.limits import TOPIC_QUEUES_MAX
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.tables.table import Table, unknown_members, unknown_of_all, with_unknown


class _TopicFile(Body, frozen=True, kw_only=True):
    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


QUEUES_MAX = TOPIC_QUEUES_MAX


def _check(name: str, config: TopicConfig) -> None:
    """Raise ProtocolError for invalid settings."""
    if config.topic_name != name:
        raise ProtocolError(f"topic {name!r} has the name {config.topic_name!r} in its own settings")
    for queues in (config.read_queue_nums, config.write_queue_nums):
        if not 0 <= queues <= QUEUES_MAX:
            raise ProtocolError(f"topic {name!r} has {queues} queues, expected 0 to {QUEUES_MAX}")


class TopicTable(Table):
    """Topics by name. Every change makes a new version; otherwise followers and name servers would not notice
    it."""

    NAME = "topics.json"

    def __init__(self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(files, directory, clock=clock)
        self.topics: dict[str, TopicConfig] = {}
        self.version = DataVersion()
        # State version of the next change: the leader's promotion, under a controller its epoch
        self.state_version = 0
        self._unknown: dict[str, dict[str, Any]] = {}

    def put(self, config: TopicConfig) -> bool:
        """Create or change a topic; return False if nothing changes."""
        if self.topics.get(config.topic_name) == config:
            return False
        self.topics[config.topic_name] = config
        self.bump()
        return True

    def remove(self, name: str) -> TopicConfig | None:
        config = self.topics.pop(name, None)
        self._unknown.pop(name, None)
        if config is not None:
            self.bump()
        return config

    def replace(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> None:
        """Replace the table by a leader's, with its version. Raise ProtocolError for invalid settings."""
        for name, config in topics.items():
            _check(name, config)
        self.topics = dict(topics)
        self.version = version
        self.state_version = version.state_version
        self.changed = True

    def bump(self) -> None:
        self.version = self.version.next(self._clock.wall_ms(), self.state_version)
        self.changed = True

    def _says_nothing(self, tree: Mapping[Any, Any]) -> bool:
        return not tree.get("topicConfigTable", tree)  # every broker has its own topics

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, _TopicFile)
        for name, config in content.topic_config_table.items():
            _check(name, config)
        self.topics = dict(content.topic_config_table)
        self.version = content.data_version
        self.state_version = self.version.state_version
        self._other = unknown_members(tree, _TopicFile)
        self._unknown = unknown_of_all(tree.get("topicConfigTable"), TopicConfig)

    def _content(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version,
            "topicConfigTable": with_unknown(self.topics, self._unknown),
        }
