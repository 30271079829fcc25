"""The short ways give what the long ways give."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol import fast_codecs as hot  # noqa: F401 — switches the short ways on
from kerolox.protocol.command import decode_command, encode_answer
from kerolox.protocol.frame import BINARY, JSON, FrameSplitter
from kerolox.protocol.header import encode_fields
from kerolox.protocol.header_json import OWN_WRITERS
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2

from .test_command import SEND_BINARY, SEND_JSON

PULL_JSON = (
    b'{"code":11,"extFields":{"queueId":"0","maxMsgBytes":"262144","maxMsgNums":"32","sysFlag":"3",'
    b'"suspendTimeoutMillis":"15000","commitOffset":"7","bname":"broker-a","topic":"TopicTest","queueOffset":"7",'
    b'"expressionType":"TAG","subVersion":"1700000000000","consumerGroup":"CG"},"flag":0,"language":"JAVA",'
    b'"opaque":6,"serializeTypeCurrentRPC":"JSON","version":479}'
)

int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def test_golden_send_is_typed_at_once() -> None:
    plain = decode_command(JSON, SEND_JSON, b"")
    assert plain._typed is not None
    assert plain.header(SendRequestV2) == decode_command(BINARY, SEND_BINARY, b"").header(SendRequestV2)
    assert plain.header(SendRequestV2).queue_id == 2
    assert plain.fields == decode_command(BINARY, SEND_BINARY, b"").fields


def test_golden_pull_is_typed_at_once() -> None:
    pull = decode_command(JSON, PULL_JSON, b"").header(PullRequest)
    assert (pull.topic, pull.queue_offset, pull.max_msg_nums) == ("TopicTest", 7, 32)


@given(
    st.builds(
        SendAnswer,
        msg_id=st.just("0A00000100002A9F0000000000000400"),
        queue_id=st.integers(0, 2**31 - 1),
        queue_offset=int64s,
        transaction_id=st.none() | texts,
        region_id=st.none() | texts,
        trace_on=st.none() | st.booleans(),
    )
)
def test_send_answers_are_the_same_text_table(header: SendAnswer) -> None:
    assert msgspec.json.decode(OWN_WRITERS[SendAnswer](header)) == encode_fields(header)


@given(
    st.builds(
        PullAnswer,
        suggest_which_broker_id=int64s,
        next_begin_offset=int64s,
        min_offset=int64s,
        max_offset=int64s,
        topic_sys_flag=st.none() | st.integers(0, 3),
        group_sys_flag=st.none() | st.integers(0, 3),
        forbidden_type=st.none() | st.integers(0, 5),
    )
)
def test_pull_answers_are_the_same_text_table(header: PullAnswer) -> None:
    assert msgspec.json.decode(OWN_WRITERS[PullAnswer](header)) == encode_fields(header)


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_answers_decode_again(encoding: int) -> None:
    header = SendAnswer(
        msg_id="AA", queue_id=3, queue_offset=9, transaction_id="T1", region_id="DefaultRegion", trace_on=True
    )
    (frame,) = FrameSplitter().feed(encode_answer(encoding, 5, 0, header))
    assert decode_command(*frame).header(SendAnswer) == header


def test_numbers_out_of_range_are_refused_in_both_encodings() -> None:
    from kerolox.errors import InvalidRequest
    from kerolox.protocol.command import Command

    good = decode_command(JSON, SEND_JSON, b"").fields
    for encoding in (JSON, BINARY):
        for bad in ("2147483648", "-2147483649", "x", "2147483648"):
            (frame,) = FrameSplitter().feed(
                Command(310, fields=good | {"e": bad}, encoding=encoding).encode()
            )
            with pytest.raises(InvalidRequest, match="e"):
                decode_command(*frame).header(SendRequestV2)
            # The same length again, in range: a remembered shape must not remember the refusal.
            (frame,) = FrameSplitter().feed(
                Command(310, fields=good | {"e": "1".rjust(len(bad), "0")}, encoding=encoding).encode()
            )
            assert decode_command(*frame).header(SendRequestV2).queue_id == 1
