"""``consumerFilter.json``: SQL subscriptions of groups, kept for the filter bits of new messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from typing import Any

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.protocol.bodies.body import Body, from_tree
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.tables.table import Table, unknown_members

logger = logging.getLogger(__name__)

DEAD_KEPT_MS = 24 * 3600 * 1000
_DEAD_BEFORE_MS = 30_000


class BloomPlaces(Body, frozen=True, kw_only=True):
    """Bits of a subscription in a Bloom filter of ``bit_num`` bits."""

    bit_num: int = 0
    bit_pos: tuple[int, ...] = ()


class FilterData(Body, frozen=True, kw_only=True):
    """Subscription of a group to a topic. Dead since ``dead_time``, alive if that is 0."""

    bloom_filter_data: BloomPlaces | None = None
    born_time: int = 0
    client_version: int = 0
    consumer_group: str = ""
    dead_time: int = 0
    expression: str | None = None
    expression_type: str | None = None
    topic: str = ""

    @property
    def dead(self) -> bool:
        return self.dead_time >= self.born_time


class _TopicFilters(Body, frozen=True, kw_only=True):
    group_filter_data: dict[str, FilterData] = {}
    topic: str = ""


class _FilterFile(Body, frozen=True, kw_only=True):
    filter_data_by_topic: dict[str, _TopicFilters] = {}


class FilterTable(Table):
    """Subscriptions: ``by_topic[topic][group]``.

    ``bits`` and ``places`` are the size of the filter in use and the number of bits of one subscription. A
    file with other values is useless, and its content is dropped.
    """

    NAME = "consumerFilter.json"
    DISPENSABLE = True

    def __init__(
        self,
        files: Files,
        directory: PathLike,
        *,
        clock: Clock = SYSTEM_CLOCK,
        bits: int = 112,
        places: int = 3,
        dead_kept_ms: Callable[[], int] = lambda: DEAD_KEPT_MS,
    ) -> None:
        super().__init__(files, directory, clock=clock)
        self.by_topic: dict[str, dict[str, FilterData]] = {}
        self.characters = 0  # length of all expressions
        self.bits = bits
        self.places = places
        self._dead_kept_ms = dead_kept_ms

    def find(self, topic: str, group: str) -> FilterData | None:
        return self.by_topic.get(topic, {}).get(group)

    def put(self, data: FilterData) -> None:
        groups = self.by_topic.setdefault(data.topic, {})
        before = groups.get(data.consumer_group)
        self.characters += _length(data) - _length(before)
        groups[data.consumer_group] = data
        self.changed = True

    def remove(self, topic: str, group: str) -> bool:
        groups = self.by_topic.get(topic)
        before = None if groups is None else groups.pop(group, None)
        if groups is None or before is None:
            return False
        self.characters -= _length(before)
        if not groups:
            del self.by_topic[topic]
        self.changed = True
        return True

    def mark_dead(self, group: str, kept: Container[str] = ()) -> None:
        """Mark the subscriptions of a group without members as dead, except to the ``kept`` topics. Dead ones
        stay for a day."""
        now_ms = self._clock.wall_ms()
        for topic, groups in self.by_topic.items():
            data = groups.get(group)
            if data is not None and not data.dead and topic not in kept:
                groups[group] = msgspec.structs.replace(data, dead_time=now_ms)
                self.changed = True

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, _FilterFile)
        self._other = unknown_members(tree, _FilterFile)
        self.by_topic = {}
        self.characters = 0
        earliest_ms = self._clock.wall_ms() - _DEAD_BEFORE_MS
        for topic, filters in content.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                bloom = data.bloom_filter_data
                if bloom is None or bloom.bit_num != self.bits or len(bloom.bit_pos) != self.places:
                    logger.warning(
                        "filters_dropped path=%s topic=%r group=%r bits=%s expected=%d next='no action "
                        "needed: groups register them again when they subscribe'",
                        self.path,
                        topic,
                        group,
                        None if bloom is None else bloom.bit_num,
                        self.bits,
                    )
                    self.by_topic = {}
                    self.characters = 0
                    return
                if not data.dead_time:
                    # Its members may be gone for good; otherwise their heartbeat revives it.
                    data = msgspec.structs.replace(data, dead_time=max(data.born_time, earliest_ms))
                self.by_topic.setdefault(topic, {})[group] = data
                self.characters += _length(data)

    def _content(self) -> dict[str, Any]:
        self.forget_dead()
        return {
            "filterDataByTopic": {
                topic: {
                    "groupFilterData": {group: members_of(data) for group, data in groups.items()},
                    "topic": topic,
                }
                for topic, groups in self.by_topic.items()
            }
        }

    def forget_dead(self) -> None:
        """Remove dead subscriptions whose time is over."""
        until_ms = self._clock.wall_ms() - self._dead_kept_ms()
        for topic, groups in list(self.by_topic.items()):
            for group, data in list(groups.items()):
                if data.dead and data.dead_time <= until_ms:
                    del groups[group]
                    self.characters -= _length(data)
                    self.changed = True
            if not groups:
                del self.by_topic[topic]


def _length(data: FilterData | None) -> int:
    return 0 if data is None else len(data.expression or "")


def members_of(data: FilterData) -> dict[str, Any]:
    """Return the JSON members, including those that are written and never read."""
    fields = zip(data.__struct_encode_fields__, data.__struct_fields__, strict=True)
    return {**{wire: getattr(data, ours) for wire, ours in fields}, "dead": data.dead}
