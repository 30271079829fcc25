"""Request-reply: bringing an answer to the client that asked."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64


class PushReply(Header, frozen=True, kw_only=True):
    """Brings a reply (the body) to the client that asked."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64 = 0
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
