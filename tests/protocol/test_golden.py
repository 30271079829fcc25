"""Frames that Apache RocketMQ 5.5.0 sent to itself decode here, and encode again to what it accepts."""

from __future__ import annotations

import pytest

from kerolox.errors import ProtocolError
from kerolox.protocol import fast_codecs as hot  # noqa: F401 — as servers and clients have it
from kerolox.protocol.batch import encode_batch, split_batch
from kerolox.protocol.bodies.heartbeat import HeartbeatData
from kerolox.protocol.bodies.members import ConsumerIds, LockAnswer, LockRequest
from kerolox.protocol.bodies.registration import decode_registration
from kerolox.protocol.bodies.routes import ClusterInfo, KVTable, TopicList, TopicRoute
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command, decode_command
from kerolox.protocol.frame import BINARY, JSON, FrameSplitter
from kerolox.protocol.header_binary import split_fields
from kerolox.protocol.record import body_crc_ok, decode_records, encode_message
from tests.protocol.answer_headers import ANSWER_HEADERS
from tests.served import REQUEST_HEADERS

from .golden import Row, rows

KINDS = {"json": JSON, "binary": BINARY}


def decoded(row: Row) -> Command:
    (frame,) = FrameSplitter().feed(row.frame)
    return decode_command(*frame)


def conversations(kind: str) -> list[tuple[Command, Command | None]]:
    """Requests with their answers."""
    waiting: dict[tuple[str, int, str, int], int] = {}
    pairs: list[tuple[Command, Command | None]] = []
    for row in rows(kind):
        command = decoded(row)
        other = "server" if row.sender == "client" else "client"
        if command.is_answer:
            at = waiting.pop((row.server, row.connection, other, command.opaque), None)
            if at is not None:
                pairs[at] = (pairs[at][0], command)
        else:
            waiting[row.server, row.connection, row.sender, command.opaque] = len(pairs)
            pairs.append((command, None))
    return pairs


@pytest.mark.parametrize("kind", KINDS)
def test_every_header_reads_as_apaches_decoder_reads_it(kind: str) -> None:
    count = 0
    for row in rows(kind):
        command = decoded(row)
        assert command.encoding == KINDS[kind]
        expected = row.header
        assert (command.code, command.opaque, command.flag) == (
            expected["code"],
            expected["opaque"],
            expected["flag"],
        )
        assert command.version == expected["version"]
        assert command.remark == expected["remark"]
        assert command.fields == {k: v for k, v in (expected["extFields"] or {}).items() if v is not None}
        count += 1
    assert count > 400


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_encodes_again_to_the_same_bytes(kind: str) -> None:
    for row in rows(kind):
        command = decoded(row)
        again = command.encode()
        if again != row.frame:
            # Java writes an empty table, or a field with an empty value, which it reads back as absent.
            raw = command._raw or b""
            assert not command.fields or any(not value for _, value, _ in split_fields(raw)), row.conversation
            assert decoded(row._replace(frame=again)).fields == command.fields


@pytest.mark.parametrize("kind", KINDS)
def test_every_header_is_typed_and_says_the_same_again(kind: str) -> None:
    seen: set[int] = set()
    for question, answer in conversations(kind):
        cls = REQUEST_HEADERS.get(question.code)
        if cls is not None:
            typed = question.header(cls)
            seen.add(question.code)
            again = Command(question.code, encoding=question.encoding)
            again._typed = typed
            # Fields we do not know are left out; those we know come back as they were.
            assert again.fields.items() <= {**_defaults(again.fields), **question.fields}.items()
        answer_cls = ANSWER_HEADERS.get(question.code)
        if answer is not None and answer_cls is not None and answer.code == 0:
            answer.header(answer_cls)
    assert {
        RequestCode.REGISTER_BROKER,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.END_TRANSACTION,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
    } <= seen


def _defaults(fields: dict[str, str]) -> dict[str, str]:
    """What a typed header writes although the sender left it out: its defaults."""
    return {name: value for name, value in fields.items() if value in ("false", "0", "-1", "true")}


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_read_and_say_the_same_again(kind: str) -> None:
    of_questions = {
        RequestCode.HEART_BEAT: HeartbeatData,
        RequestCode.LOCK_BATCH_MQ: LockRequest,
        RequestCode.UNLOCK_BATCH_MQ: LockRequest,
    }
    of_answers = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRoute,
        RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
        RequestCode.GET_KVLIST_BY_NAMESPACE: KVTable,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerIds,
        RequestCode.LOCK_BATCH_MQ: LockAnswer,
    }
    seen: set[int] = set()
    for question, answer in conversations(kind):
        if question.code in of_questions:
            body = of_questions[RequestCode(question.code)].decode(question.body)
            assert type(body).decode(body.encode()) == body
            seen.add(question.code)
        if question.code == RequestCode.REGISTER_BROKER:
            registration = decode_registration(
                question.body,
                compressed=question.fields.get("compressed") == "true",
                version=question.version,
            )
            assert registration.topic_config_serialize_wrapper.topic_config_table
            seen.add(question.code)
        if answer is not None and answer.code == 0 and answer.body and question.code in of_answers:
            body = of_answers[RequestCode(question.code)].decode(answer.body)
            assert type(body).decode(body.encode()) == body
            seen.add(question.code)
    assert len(seen) >= 6, seen


@pytest.mark.parametrize("kind", KINDS)
def test_records_and_batches_are_the_same_bytes_again(kind: str) -> None:
    records = batches = 0
    for question, answer in conversations(kind):
        if question.code == RequestCode.SEND_BATCH_MESSAGE:
            items = split_batch(question.body)
            assert encode_batch(items) == question.body
            batches += 1
        carries = question.code in (
            RequestCode.PULL_MESSAGE,
            RequestCode.LITE_PULL_MESSAGE,
            RequestCode.QUERY_MESSAGE,
            RequestCode.VIEW_MESSAGE_BY_ID,
        )
        bodies = [answer.body] if answer is not None and carries and answer.code == 0 else []
        if question.code == RequestCode.CHECK_TRANSACTION_STATE:
            bodies.append(question.body)
        for body in bodies:
            messages = decode_records(body)
            assert messages
            assert b"".join(map(encode_message, messages)) == body
            assert all(map(body_crc_ok, messages))
            records += len(messages)
    assert batches >= 1
    assert records >= 30


@pytest.mark.parametrize("kind", KINDS)
def test_frames_cut_short_never_raise_anything_else(kind: str) -> None:
    for row in list(rows(kind))[::7]:
        for cut in range(9, len(row.frame), 29):
            header = row.frame[8:cut]
            try:
                decode_command(KINDS[kind], header, b"").fields  # noqa: B018
            except ProtocolError:
                pass
