"""Sending messages, and giving back those that could not be consumed."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire


class SendRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """A send with long field names: SEND_MESSAGE and SEND_REPLY_MESSAGE. The body is the message."""

    producer_group: str
    topic: str
    default_topic: str  # the topic a new one is made after
    default_topic_queue_nums: Int32
    queue_id: Int32  # below 0: any writable queue
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None


# A subclass, so that a handler takes either; fields are declared again because a struct's wire
# names belong to the class that declares them.
class SendRequestV2(
    SendRequest,
    frozen=True,
    kw_only=True,
    rename=wire(
        producer_group="a",
        topic="b",
        default_topic="c",
        default_topic_queue_nums="d",
        queue_id="e",
        sys_flag="f",
        born_timestamp="g",
        flag="h",
        properties="i",
        reconsume_times="j",
        unit_mode="k",
        max_reconsume_times="l",
        batch="m",
        broker_name="n",
    ),
):
    """A send with one-letter field names, as clients really send it: SEND_MESSAGE_V2, batches and replies."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None


class SendAnswer(Header, frozen=True, kw_only=True, rename=wire(region_id="MSG_REGION", trace_on="TRACE_ON")):
    """The offset, queue and id the message got."""

    msg_id: str  # of a batch: all ids, joined by commas
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region_id: str | None = None
    trace_on: bool | None = None


class SendTold(Header, frozen=True, kw_only=True, rename=wire(region_id="MSG_REGION", trace_on="TRACE_ON")):
    """The part of an answer that is there even when the message was not stored."""

    region_id: str
    trace_on: bool


class SendBackRequest(
    Header, frozen=True, kw_only=True, rename=wire(broker_name="bname", reason="keroloxReason")
):
    """Could not be consumed: put it into the group's retry topic for later. ``reason`` is ours: Apache's
    brokers pass over it."""

    offset: Int64  # in the commit log
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = None
    reason: str | None = None


class RecallRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Take back a timer message that is not yet due."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    broker_name: str | None = None


class RecallAnswer(Header, frozen=True, kw_only=True, rename=wire(region_id="MSG_REGION")):
    """The message that will not be delivered."""

    msg_id: str
    region_id: str | None = None
