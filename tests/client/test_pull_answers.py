"""Meaning of answers to pulls, decided without I/O: nothing is skipped."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kerolox.client.calls.pull_answers import (
    PULL_CODES,
    Meaning,
    Pulled,
    pull_rule,
    read_pull,
    within_range,
)
from kerolox.client.errors import AccessDenied, BrokerLeaving, BrokerNotRegistered, OffsetGone
from kerolox.client.messages import Queue
from kerolox.errors import ConnectionLost, KeroloxError, RequestFailed
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import ANSWER, Command
from kerolox.protocol.header import encode_fields
from kerolox.protocol.headers.pull import PullAnswer

QUEUE = Queue("t", "a", 0)
OFFSETS = st.integers(0, 30)


def answer(code: int, next_offset: int = 0, first: int = 0, end: int = 0, body: bytes = b"") -> Command:
    """The answer of a broker."""
    header = PullAnswer(
        suggest_which_broker_id=1, next_begin_offset=next_offset, min_offset=first, max_offset=end
    )
    return Command(code, opaque=7, flag=ANSWER, fields=encode_fields(header), body=body)


@given(st.sampled_from(sorted(ResponseCode)), OFFSETS, OFFSETS, OFFSETS, OFFSETS)
def test_only_four_codes_change_the_offset(
    code: ResponseCode, asked: int, next_offset: int, first: int, end: int
) -> None:
    came = answer(code, next_offset, first, end, b"records")
    if code not in PULL_CODES:
        with pytest.raises(RequestFailed) as caught:
            read_pull(came, asked, "a:1")
        assert caught.value.response_code == code

        return
    pulled = read_pull(came, asked, "a:1")
    assert pulled[2:] == (next_offset, first, end, 1)
    assert (pulled.block == b"records") == (pulled.meaning is Meaning.FOUND)
    if pulled.meaning is Meaning.RESET:
        assert first <= asked < end, "the message is still there: the group was moved"
    if pulled.meaning is Meaning.GONE:
        assert not first <= asked < end


@given(st.sampled_from(sorted(PULL_CODES)), OFFSETS, OFFSETS, OFFSETS, OFFSETS)
def test_a_reader_of_a_range_goes_on_or_fails(
    code: ResponseCode, asked: int, next_offset: int, first: int, end: int
) -> None:
    """It never passes over a message that was not in an answer, and never asks for ever."""
    pulled = read_pull(answer(code, next_offset, first, end), asked, "a:1")
    stays = next_offset <= asked and pulled.meaning in (Meaning.NOTHING, Meaning.REFERRED)
    if stays or pulled.meaning is Meaning.GONE:
        with pytest.raises(OffsetGone) as caught:
            within_range(pulled, QUEUE, asked)
        assert (caught.value.asked, caught.value.first, caught.value.end) == (asked, first, end)
        return
    taken = within_range(pulled, QUEUE, asked)
    if taken is None:
        assert code == ResponseCode.PULL_OFFSET_MOVED
        assert first <= asked < end, "the same offset is pulled again"
    elif taken.meaning is not Meaning.FOUND:
        assert taken.next_offset > asked


@given(st.sampled_from(list(Meaning)), OFFSETS, st.integers(0, 3), OFFSETS)
def test_only_a_group_that_was_set_back_drops_its_messages(
    meaning: Meaning, next_offset: int, count: int, progress: int
) -> None:
    resets = Pulled(meaning, b"", next_offset, 0, 0, 0).resets_progress(count, progress)
    assert not resets or (count and next_offset < progress and meaning in (Meaning.RESET, Meaning.GONE))


@pytest.mark.parametrize(
    ("error", "steps"),
    [
        (ConnectionLost("a:1", "reset"), {"is_failure", "look_for_leader", "refresh_route"}),
        (BrokerNotRegistered("t", "n", "none"), {"is_failure", "look_for_leader", "refresh_route"}),
        (BrokerLeaving(ResponseCode.GO_AWAY, ""), {"is_failure", "look_for_leader", "refresh_route"}),
        (RequestFailed(ResponseCode.FLOW_CONTROL, ""), set()),
        (RequestFailed(ResponseCode.SUBSCRIPTION_NOT_LATEST, ""), {"introduce"}),
        (RequestFailed(ResponseCode.FILTER_DATA_NOT_EXIST, ""), {"introduce", "is_failure"}),
        (RequestFailed(ResponseCode.TOPIC_NOT_EXIST, ""), {"refresh_route", "is_failure"}),
        (AccessDenied(ResponseCode.NO_PERMISSION, "unknown user"), {"is_failure"}),
    ],
)
def test_steps_after_an_error(error: KeroloxError, steps: set[str]) -> None:
    rule = pull_rule(error)._asdict()
    pause_s = rule.pop("pause_s")
    assert {name for name, is_step in rule.items() if is_step} == steps
    assert (pause_s is None) == ("is_failure" in steps), "an error that is reported pauses for longer"
