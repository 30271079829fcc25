"""``messageRequestMode.json``: groups that pop a topic's messages instead of pulling them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.protocol.bodies.body import from_tree
from kerolox.protocol.bodies.groups import RequestModeTable, SetRequestMode
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.tables.table import Table, unknown_members


class RequestModes(Table):
    """Request modes: ``modes[topic][group]``. Groups without one pull."""

    NAME = "messageRequestMode.json"

    def __init__(self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(files, directory, clock=clock)
        self.modes: dict[str, dict[str, SetRequestMode]] = {}

    def find(self, topic: str, group: str) -> SetRequestMode | None:
        return self.modes.get(topic, {}).get(group)

    def put(self, mode: SetRequestMode) -> None:
        self.modes.setdefault(mode.topic or "", {})[mode.consumer_group or ""] = mode
        self.changed = True

    def remove(self, topic: str, group: str) -> None:
        groups = self.modes.get(topic, {})
        if groups.pop(group, None) is not None:
            self.changed = True
            if not groups:
                del self.modes[topic]

    def remove_topic(self, topic: str) -> None:
        if self.modes.pop(topic, None) is not None:
            self.changed = True

    def replace(self, modes: Mapping[str, Mapping[str, SetRequestMode]]) -> None:
        """Replace the table by a leader's."""
        self.modes = {topic: dict(groups) for topic, groups in modes.items()}
        self.changed = True

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, RequestModeTable)
        self.modes = {topic: dict(groups) for topic, groups in content.message_request_mode_map.items()}
        self._other = unknown_members(tree, RequestModeTable)

    def _content(self) -> dict[str, Any]:
        return {"messageRequestModeMap": self.modes}
