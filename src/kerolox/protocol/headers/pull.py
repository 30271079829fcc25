"""Pulling messages by queue and offset."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire


class PullRequest(
    Header,
    frozen=True,
    kw_only=True,
    rename=wire(
        proxy_forward_client_id="proxyFrowardClientId",  # the wire's own spelling
        broker_name="bname",
        logical_queue="lo",
    ),
):
    """Asks for the messages of a queue from an offset on. The broker may hold it until there are some."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_forward_client_id: str | None = None
    broker_name: str | None = None
    logical_queue: bool | None = None
    # kerolox only, see FRAME.md: a byte limit for readers of whole queues, in place of 32 messages.
    scan_bytes: Int32 | None = None


class PullAnswer(Header, frozen=True, kw_only=True):
    """Offsets for the next pull. The first four are required with codes 0, 19, 20 and 21: Java unboxes
    them."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
