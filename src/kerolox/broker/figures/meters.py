"""Meters with a small cost for each request, active only while the metrics are exported.

They measure durations of requests, sizes of messages by kind, the time to create topics and groups, and
delays of timer messages. Each series needs only a few numbers; a run of plain sends is counted in one step.
Every table has a limit: known codes, and existing topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kerolox.clock import Clock
from kerolox.front.requests import Answer, HeldRequest, Request
from kerolox.histogram import Histogram
from kerolox.protocol import properties as packed
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.record_scan import SIZE, Entry
from kerolox.protocol.reserved import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from kerolox.metric_text import Labels, MetricText

# RocketMQ's histogram bounds.
RPC_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
SIZE_BYTES: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
CREATE_MS: Final = (10, 100, 1000, 3000, 5000)
DELAY_S: Final = (60, 600, 3600, 43_200, 86_400, 259_200)

NORMAL, FIFO, DELAY, TRANSACTION = "normal", "fifo", "delay", "transaction"
SHARDING_KEY = b"__SHARDINGKEY"
_LATER = (packed.AT_DELAY, packed.AT_TIMER_DELIVER_MS, packed.AT_TIMER_DELAY_S, packed.AT_TIMER_DELAY_MS)
_WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)
_UNKNOWN = "unknown"
_REQUESTS = {code.value: code.name.lower() for code in RequestCode}
_RESPONSES = {code.value: code.name.lower() for code in ResponseCode}


class Meters:
    """Meters of a broker. ``is_system`` tells which topics are system topics."""

    def __init__(self, clock: Clock, is_system: Callable[[str], bool]) -> None:
        self._clock = clock
        self._is_system = is_system
        self._sizes: dict[tuple[str, str], Histogram] = {}  # sizes of messages, by topic and kind
        # request, response, whether it was held, whether it was one-way
        self._calls: dict[tuple[int, int, bool, bool], Histogram] = {}
        self._refused: Counter[str] = Counter()  # by reason
        self._topics_made: dict[tuple[str, bool], Histogram] = {}  # outcome, system
        self._groups_made: dict[str, Histogram] = {}
        self._delays: dict[str, Histogram] = {}  # topic

    # --- messages -------------------------------------------------------------------------------------

    def stored(self, topic: str, kind: str, messages: int, size_bytes: int) -> None:
        """Count messages that the broker itself stored: due or committed ones."""
        if messages:  # single sizes are unknown: each counts as their average
            self._stored(topic, kind).add(size_bytes / messages, messages)

    def sent(self, topic: str, properties: bytes, sizes: Sequence[int]) -> None:
        """Count the messages of a request."""
        self._stored(topic, kind_of(properties)).add_all(sizes)

    def sent_run(self, topic: str, ordered: bool, entries: list[Entry]) -> None:
        """Count a run of plain sends to one topic. All count as the kind of the first one, because a check of
        each would cost more than the rest."""
        if topic in _WAITING_TOPICS:
            kind = DELAY
        else:
            kind = FIFO if ordered else NORMAL
        found = self._stored(topic, kind)
        if len(entries) == 1:
            found.add(entries[0][SIZE])
        else:
            found.add_all([entry[SIZE] for entry in entries])

    def _stored(self, topic: str, kind: str) -> Histogram:
        found = self._sizes.get((topic, kind))
        if found is None:
            found = self._sizes[topic, kind] = Histogram(SIZE_BYTES)
        return found

    def timed(self, topic: str, delay_s: int) -> None:
        """Count a message that was entered into the timer, by its delay."""
        found = self._delays.get(topic)
        if found is None:
            found = self._delays[topic] = Histogram(DELAY_S)
        found.add(delay_s)

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self._sizes if key[0] == topic]:
            del self._sizes[key]
        self._delays.pop(topic, None)

    # --- requests -------------------------------------------------------------------------------------

    def answered(self, request: Request[Any], answer: Answer) -> None:
        """Count a request that was answered, or a completed one-way request."""
        code = answer.code
        if answer.reason:
            self._refused[answer.reason] += 1
        elapsed_ms = (self._clock.monotonic_s() - request.received_s) * 1000
        held = isinstance(request, HeldRequest)
        self._call(request.code, code, held, request.is_one_way).add(elapsed_ms)
        if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC and request.header is not None:
            made = (_ending(code), self._is_system(request.header.topic))
            self._topics_made.setdefault(made, Histogram(CREATE_MS)).add(elapsed_ms)
        elif request.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            self._groups_made.setdefault(_ending(code), Histogram(CREATE_MS)).add(elapsed_ms)

    def answered_run(self, asked: int, received_s: float, count: int, code: int) -> None:
        """Count sends of one request code that arrived in a run and were answered together."""
        elapsed_ms = (self._clock.monotonic_s() - received_s) * 1000
        self._call(asked, code, False, False).add(elapsed_ms, count)

    def _call(self, asked: int, code: int, held: bool, one_way: bool) -> Histogram:
        # Peers may send any code: all unknown codes count as one.
        key = (asked if asked in _REQUESTS else -1, code if code in _RESPONSES else -1, held, one_way)
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = Histogram(RPC_MS)
        return found

    # --- export ---------------------------------------------------------------------------------------

    def metrics(self, out: MetricText) -> None:
        """Write the metrics. Runs on the event loop, which owns the numbers."""
        out.histogram(
            "rocketmq_rpc_latency_milliseconds", "How long requests took",
            [
                (
                    {
                        "protocol_type": "remoting",
                        "request_code": _REQUESTS.get(asked, _UNKNOWN),
                        "response_code": _RESPONSES.get(code, _UNKNOWN),
                        "is_long_polling": held,
                        "result": "oneway" if one_way else "success",
                    },
                    histogram,
                )
                for (asked, code, held, one_way), histogram in self._calls.items()
            ],
        )  # fmt: skip
        out.metric(
            "kerolox_requests_refused_total", "counter", "Rejected requests, by reason",
            [({"reason": reason}, count) for reason, count in sorted(self._refused.items())],
        )  # fmt: skip
        sizes: list[tuple[Labels, Histogram]] = [
            ({"topic": topic, "message_type": kind, "is_system": self._is_system(topic)}, found)
            for (topic, kind), found in self._sizes.items()
        ]
        out.metric(
            "rocketmq_messages_in_total", "counter", "Messages stored",
            [(labels, found.count) for labels, found in sizes],
        )  # fmt: skip
        out.metric(
            "rocketmq_throughput_in_total", "counter", "Bytes stored",
            [(labels, found.total) for labels, found in sizes],
        )  # fmt: skip
        out.histogram("rocketmq_message_size", "Sizes of stored messages", sizes)
        out.histogram(
            "rocketmq_topic_create_execution_time_milliseconds", "How long topics took to be made",
            [
                ({"invocation_status": ending, "is_system": system}, histogram)
                for (ending, system), histogram in self._topics_made.items()
            ],
        )  # fmt: skip
        out.histogram(
            "rocketmq_consumer_group_create_execution_time_milliseconds", "How long groups took to be made",
            [({"invocation_status": ending}, histogram) for ending, histogram in self._groups_made.items()],
        )  # fmt: skip
        out.histogram(
            "rocketmq_delay_message_latency_seconds", "How far ahead messages were timed",
            [
                ({"storage_type": "local", "storage_medium": "disk", "topic": topic}, histogram)
                for topic, histogram in self._delays.items()
            ],
        )  # fmt: skip


def kind_of(properties: bytes) -> str:
    """Return RocketMQ's name for the kind of a message, by its properties."""
    if (packed.find(properties, packed.AT_TRANSACTION_PREPARED) or b"").lower() == b"true":
        return TRANSACTION
    if any(packed.find(properties, mark) is not None for mark in _LATER):
        return DELAY
    return FIFO if SHARDING_KEY in properties else NORMAL


def _ending(code: int) -> str:
    return "success" if code == ResponseCode.SUCCESS else "failure"
