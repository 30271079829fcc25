"""Search for the first message stored at or after a time.

Brokers before RocketMQ 5.1.1 answer with the message nearest to the time, or with any of several messages of
the same millisecond, so the first one may be before or after the answer. For these brokers, the messages
around the answer are pulled until the first one is found, usually two pulls.
"""

from __future__ import annotations

from kerolox.client.calls.offsets import ask_end, ask_first, read_edge
from kerolox.client.calls.pulls import pull_request
from kerolox.client.calls.steps import Ask, Steps
from kerolox.protocol.codes import VERSION_EXACT_TIMES, RequestCode
from kerolox.protocol.headers.offset import BoundaryType, OffsetAnswer, SearchOffsetRequest
from kerolox.protocol.record import decode_records


def time_search(topic: str, broker: str | None, queue_id: int, time_ms: int, group: str) -> Steps[int]:
    """Search the offset of the first message stored at or after ``time_ms``.

    Responses to its pulls may have any of PULL_CODES.
    """
    answer = yield Ask(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        SearchOffsetRequest(
            topic=topic,
            queue_id=queue_id,
            timestamp=time_ms,
            boundary_type=BoundaryType.LOWER,
            broker_name=broker,
        ),
    )
    guess = answer.header(OffsetAnswer).offset
    if answer.version >= VERSION_EXACT_TIMES:
        return guess
    low = read_edge((yield ask_first(topic, broker, queue_id)))
    high = max(low, read_edge((yield ask_end(topic, broker, queue_id))))
    # Messages before low are earlier, those from high on are not. Steps from the guess grow until the first
    # message is enclosed; then the search is binary.
    look, step, sides = min(max(guess, low), high - 1), 1, set()
    while low < high:
        answer = yield Ask(
            RequestCode.PULL_MESSAGE,
            pull_request(topic, broker, queue_id, look, 1, group=group),
        )
        earlier = answer.code != 0 or decode_records(answer.body)[0].store_timestamp < time_ms
        if earlier:  # also for a message deleted meanwhile
            low = look + 1
        else:
            high = look
        sides.add(earlier)
        if len(sides) == 2:
            look = (low + high) // 2
        else:
            look = min(low + step - 1, high - 1) if earlier else max(high - step, low)
            step *= 2
    return high
