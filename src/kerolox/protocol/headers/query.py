"""Finding messages by key, id or place."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire


class QueryMessageRequest(Header, frozen=True, kw_only=True, rename=wire(unique_key="_UNIQUE_KEY_QUERY")):
    """Asks for the messages of a topic with a key, stored within a time."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key: bool = False  # the key is the id the producer gave


class QueryMessageAnswer(
    Header, frozen=True, kw_only=True, rename=wire(index_last_update_phy_offset="indexLastUpdatePhyoffset")
):
    """How far the key index reaches."""

    index_last_update_timestamp: Int64
    index_last_update_phy_offset: Int64


class ViewMessageRequest(Header, frozen=True, kw_only=True):
    """Asks for the message at a place of the commit log."""

    offset: Int64
    topic: str | None = None


class QueryConsumeQueueRequest(Header, frozen=True, kw_only=True):
    """Asks for entries of a consume queue."""

    topic: str
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
