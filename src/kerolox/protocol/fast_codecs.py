"""Faster codecs for the most frequent requests: send, batch send, pull, and their answers.

The types are the same. Requests are decoded in one pass; an answer's own fields are a template with a few
numbers. bench/codec.py has the measurements. Importing this module enables it; servers and clients do.
"""

from __future__ import annotations

import struct

import msgspec

from kerolox.protocol import header_binary
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.header import encode_fields
from kerolox.protocol.header_json import OWN_WRITERS, decode_in_one_pass, quoted
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.headers.send import SendAnswer, SendRequest, SendRequestV2


def _write_send_answer(header: SendAnswer) -> bytes:
    transaction_id = header.transaction_id
    if (
        transaction_id is None
        or not transaction_id.isalnum()  # a producer's own text: may need escapes
        or not transaction_id.isascii()
        or header.batch_uniq_id is not None
        or header.recall_handle is not None
        or header.region_id is None
        or header.trace_on is None
    ):
        return msgspec.json.encode(encode_fields(header))
    trace_on = "true" if header.trace_on else "false"
    return (
        f'{{"msgId":"{header.msg_id}","queueId":"{header.queue_id}","queueOffset":"{header.queue_offset}",'
        f'"transactionId":"{transaction_id}","MSG_REGION":{quoted(header.region_id)},"TRACE_ON":"{trace_on}"}}'
    ).encode()


def _write_pull_answer(header: PullAnswer) -> bytes:
    if (
        header.offset_delta is not None
        or header.forbidden_type is not None
        or header.topic_sys_flag is None
        or header.group_sys_flag is None
    ):
        return msgspec.json.encode(encode_fields(header))
    return (
        b'{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d",'
        b'"topicSysFlag":"%d","groupSysFlag":"%d"}'
        % (
            header.suggest_which_broker_id,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            header.topic_sys_flag,
            header.group_sys_flag,
        )
    )


def _pack_send_answer(header: SendAnswer) -> bytes:
    transaction_id = header.transaction_id
    if (
        transaction_id is None
        or not transaction_id.isascii()
        or header.batch_uniq_id is not None
        or header.recall_handle is not None
        or header.region_id is None
        or header.trace_on is None
    ):
        return header_binary.encode_own(header)
    queue_id, queue_offset = b"%d" % header.queue_id, b"%d" % header.queue_offset
    tail = (header.region_id, header.trace_on)
    packed = _TAILS.get(tail)
    if packed is None:
        if len(_TAILS) > 64:
            _TAILS.clear()
        trace_on = "true" if header.trace_on else "false"
        packed = _TAILS[tail] = header_binary.encode_run(
            {"MSG_REGION": header.region_id, "TRACE_ON": trace_on}
        )
    msg_id, unique = header.msg_id.encode(), transaction_id.encode()
    return b"\x00\x05msgId%b%b\x00\x07queueId%b%b\x00\x0bqueueOffset%b%b\x00\x0dtransactionId%b%b%b" % (
        _length(len(msg_id)),
        msg_id,
        _length(len(queue_id)),
        queue_id,
        _length(len(queue_offset)),
        queue_offset,
        _length(len(unique)),
        unique,
        packed,
    )


_TAILS: dict[tuple[str, bool], bytes] = {}
_length = struct.Struct(">i").pack

OWN_WRITERS[SendAnswer] = _write_send_answer
OWN_WRITERS[PullAnswer] = _write_pull_answer
header_binary.OWN_WRITERS[SendAnswer] = _pack_send_answer

decode_in_one_pass(RequestCode.SEND_MESSAGE, SendRequest)
decode_in_one_pass(RequestCode.SEND_MESSAGE_V2, SendRequestV2)
decode_in_one_pass(RequestCode.SEND_BATCH_MESSAGE, SendRequestV2)
decode_in_one_pass(RequestCode.PULL_MESSAGE, PullRequest)
decode_in_one_pass(RequestCode.LITE_PULL_MESSAGE, PullRequest)
decode_in_one_pass(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest)
