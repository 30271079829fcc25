"""Popping messages: the broker picks, the client acknowledges each."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int32, Int64, wire


class PopRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Asks for some messages of a topic, and hides them from others for a while."""

    consumer_group: str
    topic: str
    queue_id: Int32 = 0  # below 0: any queue
    max_msg_nums: Int32 = 0
    invisible_time: Int64 = 0
    poll_time: Int64 = 0
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = None


class PopAnswer(Header, frozen=True, kw_only=True):
    """The popped messages, with all values that their handles are computed from."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0
    rest_num: Int64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Acknowledges one popped message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str  # the handle
    offset: Int64
    broker_name: str | None = None


class ChangeInvisibleTimeRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Hide a popped message for longer, or give it back sooner."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    broker_name: str | None = None


class ChangeInvisibleTimeAnswer(Header, frozen=True, kw_only=True):
    """The values of the new handle."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0


class PeekRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Look at messages without popping them."""

    topic: str
    consumer_group: str
    queue_id: Int32 = 0
    max_msg_nums: Int32 = 0
    broker_name: str | None = None


class NotificationRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Answer as soon as there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: Int32 = 0
    poll_time: Int64 = 0
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = None


class NotificationAnswer(Header, frozen=True, kw_only=True):
    """Availability of messages to pop, and whether too many requests wait already."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfoRequest(Header, frozen=True, kw_only=True, rename=wire(broker_name="bname")):
    """Asks how many pops are held."""

    consumer_group: str
    topic: str
    queue_id: Int32 = 0
    broker_name: str | None = None


class PollingInfoAnswer(Header, frozen=True, kw_only=True):
    """How many pops are held."""

    polling_num: Int32 = 0
