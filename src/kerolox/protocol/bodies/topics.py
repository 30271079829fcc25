"""Settings of topics, and the version they have."""

from __future__ import annotations

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import Body, from_tree
from kerolox.protocol.bodies.queue_mapping import QueueMapping, QueueMappingDetail
from kerolox.protocol.flags import PERM_READ_WRITE
from kerolox.protocol.json_dialect import dumps, loads

SINGLE_TAG = "SINGLE_TAG"
_LINE_ITEMS_MIN = 5
_AHEAD = 1000  # changes: tables are noted about once a second, and copied every few


class DataVersion(Body, frozen=True, kw_only=True):
    """The version of a table. Two are equal when all three numbers are."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def newer_than(self, other: DataVersion) -> bool:
        """By epoch first, then by number of changes, then by time: clocks are trusted least."""
        mine = (self.state_version, self.counter, self.timestamp)
        return mine > (other.state_version, other.counter, other.timestamp)

    def ahead(self, now_ms: int) -> DataVersion:
        """A version that whoever had this one a moment ago, and went on from it, has not reached."""
        return DataVersion(counter=self.counter + _AHEAD, state_version=self.state_version, timestamp=now_ms)

    def next(self, now_ms: int, state_version: int = 0) -> DataVersion:
        """The version after one more change."""
        return DataVersion(counter=self.counter + 1, state_version=state_version, timestamp=now_ms)


class TopicConfig(Body, frozen=True, kw_only=True):
    """The settings of one topic."""

    attributes: dict[str, str] = {}
    order: bool = False
    perm: int = PERM_READ_WRITE
    read_queue_nums: int = 16
    topic_filter_type: str = SINGLE_TAG
    topic_name: str = ""
    topic_sys_flag: int = 0
    write_queue_nums: int = 16

    def to_line(self, *, with_attributes: bool = True) -> str:
        """The line of a compressed registration. 4.x name servers want it without attributes."""
        line = f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} "
        line += self.topic_filter_type
        return f"{line} {dumps(self.attributes).decode()}" if with_attributes else line

    @classmethod
    def from_line(cls, line: str) -> TopicConfig:
        """Five items, or six with the attributes."""
        items = line.split(" ", _LINE_ITEMS_MIN)
        if len(items) < _LINE_ITEMS_MIN or not items[0]:
            raise ProtocolError(f"topic line {line[:80]!r}: expected name, read, write, perm, filter type")
        name, read, write, perm, filter_type, *rest = items
        try:
            numbers = int(read), int(write), int(perm)
        except ValueError:
            raise ProtocolError(f"topic line {line[:80]!r}: items 2 to 4 are no integers") from None
        attributes: dict[str, str] = {}
        if rest and rest[0]:
            try:
                attributes = from_tree(loads(rest[0]), dict[str, str])
            except ProtocolError:
                pass  # every peer goes on without them
        return cls(
            topic_name=name,
            read_queue_nums=numbers[0],
            write_queue_nums=numbers[1],
            perm=numbers[2],
            topic_filter_type=filter_type,
            attributes=attributes,
        )


class TopicConfigWithMapping(TopicConfig, frozen=True, kw_only=True):
    """Answer to GET_TOPIC_CONFIG."""

    mapping_detail: QueueMappingDetail | None = None


class TopicConfigTable(Body, frozen=True, kw_only=True):
    """All topics of a broker: in registrations, and the answer to GET_ALL_TOPIC_CONFIG."""

    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}
    topic_queue_mapping_detail_map: dict[str, QueueMappingDetail] = {}
    topic_queue_mapping_info_map: dict[str, QueueMapping] = {}


class AllTopics(TopicConfigTable, frozen=True, kw_only=True):
    """Answer to GET_ALL_TOPIC_CONFIG. Brokers of RocketMQ neither send nor read the deletions."""

    kerolox_deleted: dict[str, int] = {}  # topic → end of the log when it was deleted


class TopicConfigList(Body, frozen=True, kw_only=True):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: tuple[TopicConfig, ...] = ()
