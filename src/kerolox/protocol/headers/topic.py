"""Topics of a broker: make, change, show, delete."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire


class CreateTopicRequest(Header, frozen=True, kw_only=True):
    """Makes a topic, or gives it these settings."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str | None = None  # always sent, never used
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None  # +key=value,-key
    force: bool | None = None


class DeleteTopicRequest(Header, frozen=True, kw_only=True):
    """Delete this topic with its queues."""

    topic: str


class TopicConfigRequest(Header, frozen=True, kw_only=True, rename=wire(logical_queue="lo")):
    """Asks for the settings of a topic."""

    topic: str
    logical_queue: bool | None = None


class AllTopicConfigRequest(Header, frozen=True, kw_only=True):
    """The settings of all topics, or (5.3) of some by their place in name order."""

    topic_seq: Int32 | None = None
    max_topic_num: Int32 | None = None
    data_version: str | None = None  # JSON


class AllTopicConfigAnswer(Header, frozen=True, kw_only=True):
    """How many topics there are in all."""

    total_topic_num: Int32 | None = None


class TopicStatsRequest(Header, frozen=True, kw_only=True):
    """Asks for the bounds of every queue of a topic."""

    topic: str


class TopicConsumersRequest(Header, frozen=True, kw_only=True):
    """Asks which groups consume a topic."""

    topic: str


class RocksdbQueueProgressRequest(Header, frozen=True, kw_only=True):
    """Compares the two kinds of queue files of a topic."""

    topic: str
    check_store_time: Int64 = 0
