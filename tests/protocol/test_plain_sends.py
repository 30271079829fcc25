"""Plain sends, compiled and not: what is taken becomes what the handlers would have made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.compiled import load
from kerolox.protocol import plain_sends
from kerolox.protocol import properties as names
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.command import Command, decode_command
from kerolox.protocol.frame import BINARY, JSON, Frame, FrameSplitter
from kerolox.protocol.headers.send import SendAnswer
from kerolox.protocol.plain_sends import (
    KNOWN_FIELDS,
    ParkedSend,
    Taken,
)
from kerolox.protocol.record import body_crc_ok, decode_records, topic_field
from kerolox.protocol.send_rules import SendRules
from kerolox.protocol.signature import Signer, sign, signature, signer, verify

from . import golden

CORE = load()
BORN = bytes([10, 0, 0, 1, 0, 0, 0x30, 0x39])
STORE = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
STORE_V6 = bytes(15) + b"\x01" + bytes([0, 0, 0x2A, 0x9F])
ADDED = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
STOPS = (b"DELAY", b"TIMER_", b"TRAN_MSG", b"POP_CK")
KEY = "7F000001162E18B4AAC28E2F6D2A0001"
ME = signer("me", "secret")
END, FILE_END, NOW = 5000, 1 << 30, 1_700_000_000_123


class Queue:
    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset


Take = Callable[..., Taken | None]

TAKERS: list[Any] = [pytest.param(plain_sends._take_sends, id="python")]
if CORE is not None:
    TAKERS.append(pytest.param(CORE.take_sends, id="compiled"))


def rules(**changes: Any) -> SendRules:
    usual: dict[str, Any] = {
        "store_host": STORE, "body_bytes_max": 1 << 22, "cluster": "DefaultCluster",
        "region_id": "DefaultRegion", "stops": STOPS,
    }  # fmt: skip
    return SendRules(**(usual | changes))


class Waiting:
    """Where messages wait: one topic of two queues for levels, another for times, nothing for the rest."""

    def __init__(self) -> None:
        self.levels = [Queue(10), Queue(20)]
        self.times = Queue(30)
        self.asked: list[tuple[bytes, int, bytes]] = []

    def park(self, topic: bytes, queue_id: int, properties: bytes) -> ParkedSend | None:
        self.asked.append((topic, queue_id, properties))
        level = names.find(properties, names.AT_DELAY)
        real = b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (topic, queue_id)
        if level in (b"1", b"2"):
            number = int(level) - 1
            return b"LEVELS", topic_field(b"LEVELS"), number, self.levels[number], properties + real, b""
        if b"TIMER_" in properties:
            return b"TIMES", topic_field(b"TIMES"), 0, self.times, properties + real, b"djEgVCBi"
        return None

    @property
    def queues(self) -> list[Queue]:
        return [*self.levels, self.times]


def fields(**changes: str | None) -> dict[str, str]:
    usual: dict[str, str | None] = {
        "a": "producers", "b": "T", "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1700000000000",
        "h": "0", "i": f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02TAGS\x01a\x02", "j": "0", "k": "false",
        "m": "false", "n": "broker-a",
    }  # fmt: skip
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def frame(
    own: dict[str, str] | None = None,
    body: bytes = b"hello",
    *,
    code: int = 310,
    opaque: int = 7,
    flag: int = 0,
    encoding: int = JSON,
) -> Frame:
    command = Command(
        code, opaque=opaque, flag=flag, fields=own or fields(), body=body, encoding=encoding, language="JAVA"
    )
    return FrameSplitter().feed(command.encode())[0]


def targets(queues: int = 4, topic: bytes = b"T", first: int = 0) -> dict[bytes, Any]:
    return {topic: (topic, topic_field(topic), {number: Queue(first + number) for number in range(queues)})}


def run(
    take: Take, frames: list[Frame], known: dict[bytes, Any] | None = None, at: int = 0, **changes: Any
) -> tuple[Any, list[int]]:
    """What was taken, queues as their numbers, and the offsets of all queues after it."""
    known = targets() if known is None else known
    given: dict[str, Any] = {
        "rules": rules(), "park": None, "born": BORN, "end": END, "file_end": FILE_END, "signer": None,
        **changes,
    }  # fmt: skip
    taken = take(
        frames, at, known, given["rules"], given["park"], given["born"], given["end"], given["file_end"],
        NOW, given["signer"],
    )  # fmt: skip
    queues = [queue for _, _, by_number in known.values() for queue in by_number.values()]
    if given["park"] is not None:
        queues += given["park"].__self__.queues
    after = [queue.next_offset for queue in queues]
    if taken is None:
        return None, after
    count, records, entries, answers, moved, messages = taken
    return (
        count,
        records,
        entries,
        answers,
        [(queues.index(q), first) for q, first in moved],
        messages,
    ), after


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_plain_send_becomes_record_entry_and_answer(take: Take, encoding: int) -> None:
    own = fields(e="2", j="3", h="5", f="1")
    (count, records, entries, answers, moved, messages), after = run(take, [frame(own, encoding=encoding)])
    assert (count, messages, moved, after) == (1, 1, [(2, 2)], [0, 1, 3, 3])
    (message,) = decode_records(records)
    assert body_crc_ok(message)
    packed = own["i"].encode() + ADDED
    assert message.body == b"hello"
    assert message.packed_properties == packed
    assert (message.topic, message.queue_id, message.queue_offset, message.physical_offset) == (
        "T",
        2,
        2,
        END,
    )
    assert (message.flag, message.sys_flag, message.reconsume_times) == (5, 1, 3)
    assert (message.born_timestamp, message.store_timestamp) == (1_700_000_000_000, NOW)
    assert (message.born_host, message.store_host) == (BORN, STORE)
    assert entries == [(len(records), 0, 2, 2, END, 1, NOW, b"T", packed)]
    (answer,) = [decode_command(*one) for one in FrameSplitter().feed(answers)]
    assert (answer.code, answer.opaque, answer.flag, answer.encoding) == (0, 7, 1, encoding)
    assert answer.header(SendAnswer) == SendAnswer(
        msg_id=f"7F00000100002A9F{END:016X}",
        queue_id=2,
        queue_offset=2,
        transaction_id=KEY,
        region_id="DefaultRegion",
        trace_on=True,
    )


@pytest.mark.parametrize("take", TAKERS)
def test_a_run_ends_where_the_topic_changes_or_something_is_not_plain(take: Take) -> None:
    known = {**targets(), **targets(topic=b"Other")}
    other = frame(fields(b="Other"))
    assert run(take, [frame(), frame(), other, frame()], known)[0][0] == 2
    assert run(take, [frame(), frame(), other, frame()], known, at=2)[0][0] == 1
    assert run(take, [frame(), frame(fields(i="no key")), frame()])[0][0] == 1
    assert run(take, [frame()], at=1)[0] is None


ONE_ITEM = encode_batch([(0, b"b", b"")])
NOT_PLAIN: dict[str, Frame] = {
    "another code": frame(code=10),
    "an answer": frame(flag=1),
    "no topic": frame(fields(b=None)),
    "no producer group": frame(fields(a=None)),
    "an unknown topic": frame(fields(b="U")),
    "an unknown queue": frame(fields(e="4")),
    "any queue": frame(fields(e="-1")),
    "a queue that is no number": frame(fields(e="x")),
    "a queue beyond 32 bits": frame(fields(e="4294967296")),
    "a batch by its flag": frame(fields(m="true")),
    "prepared": frame(fields(f="4")),
    "rolled back": frame(fields(f="12")),
    "an inner batch": frame(fields(f="128")),
    "no properties": frame(fields(i=None)),
    "no unique key": frame(fields(i="TAGS\x01a\x02")),
    "a unique key that needs escapes": frame(fields(i='UNIQ_KEY\x01a"b\x02')),
    "an empty unique key": frame(fields(i="UNIQ_KEY\x01\x02")),
    "delayed": frame(fields(i=f"UNIQ_KEY\x01{KEY}\x02DELAY\x013\x02")),
    "timed": frame(fields(i=f"UNIQ_KEY\x01{KEY}\x02TIMER_DELAY_SEC\x013\x02")),
    "half": frame(fields(i=f"UNIQ_KEY\x01{KEY}\x02TRAN_MSG\x01true\x02")),
    "no body": frame(body=b""),
    "properties too long": frame(fields(i=f"UNIQ_KEY\x01{KEY}\x02a\x01{'x' * 32700}\x02")),
    "a batch that does not read": frame(body=b"x" * 30, code=320),
    "an empty batch": frame(body=b"", code=320),
    "a batch with an odd unique key": frame(fields(i="UNIQ_KEY\x01ä\x02"), ONE_ITEM, code=320),
    "a delayed batch": frame(fields(i="DELAY\x013\x02"), ONE_ITEM, code=320),
    "a broken header": (JSON, b'{"code":310,', b"x"),
    "an unknown encoding": (9, b'{"code":310,', b"x"),
}


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_is_not_plain_is_left(take: Take, what: str) -> None:
    for known in (targets(), {}):
        before = [queue.next_offset for target in known.values() for queue in target[2].values()]
        assert run(take, [NOT_PLAIN[what]], known) == (None, before)


@pytest.mark.parametrize("take", TAKERS)
def test_limits_of_size_and_file(take: Take) -> None:
    size = len(run(take, [frame()])[0][1])
    assert run(take, [frame()], rules=rules(body_bytes_max=size))[0][0] == 1
    assert run(take, [frame()], rules=rules(body_bytes_max=size - 1))[0] is None
    assert run(take, [frame()] * 3, file_end=END + 2 * size + 8)[0][0] == 2
    assert run(take, [frame()] * 3, file_end=END + 2 * size + 7)[0][0] == 1


@pytest.mark.parametrize("take", TAKERS)
def test_a_batch_becomes_one_record_for_each_message(take: Take) -> None:
    items = [(number, b"body%d" % number, b"KEYS\x01k%d\x02" % number) for number in range(5)]
    frames = [frame(body=encode_batch(items), code=320), frame()]
    (count, records, entries, answers, moved, messages), after = run(take, frames, targets(first=10))
    assert (count, messages, moved, after) == (2, 6, [(0, 10)], [16, 11, 12, 13])
    stored = decode_records(records)
    assert [(m.flag, m.body, m.packed_properties) for m in stored[:5]] == items
    assert [m.queue_offset for m in stored] == list(range(10, 16))
    assert [entry[4] for entry in entries] == [m.physical_offset for m in stored]
    first, second = (decode_command(*one).header(SendAnswer) for one in FrameSplitter().feed(answers))
    assert first.msg_id.split(",") == [f"7F00000100002A9F{m.physical_offset:016X}" for m in stored[:5]]
    assert (first.queue_offset, second.queue_offset) == (10, 15)


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("properties", ["WAIT\x01true\x02", "UNIQ_KEY\x01\x02", "x"])
def test_a_batch_without_a_key_is_answered_without_transaction_id(
    take: Take, encoding: int, properties: str
) -> None:
    batch = frame(fields(i=properties), ONE_ITEM, code=320, encoding=encoding)
    (count, records, _, answers, _, _), _ = run(take, [batch, batch])
    assert count == 2
    assert [message.body for message in decode_records(records)] == [b"b", b"b"]
    found = [decode_command(*one).header(SendAnswer) for one in FrameSplitter().feed(answers)]
    assert [answer.transaction_id for answer in found] == [None, None]
    assert [answer.queue_offset for answer in found] == [0, 1]
    assert found[0].region_id == "DefaultRegion"


@pytest.mark.parametrize("take", TAKERS)
def test_one_way_sends_are_stored_and_not_answered(take: Take) -> None:
    (count, _, entries, answers, _, _), _ = run(take, [frame(flag=2), frame(), frame(flag=2)])
    assert (count, len(entries)) == (3, 3)
    assert len(FrameSplitter().feed(answers)) == 1


@pytest.mark.parametrize("take", TAKERS)
def test_who_does_not_wait_for_the_flush_is_left_where_that_matters(take: Take) -> None:
    hasty = frame(fields(i=f"UNIQ_KEY\x01{KEY}\x02WAIT\x01false\x02"))
    assert run(take, [hasty])[0][0] == 1
    assert run(take, [hasty], rules=rules(wait_matters=True))[0] is None
    assert run(take, [frame()], rules=rules(wait_matters=True))[0][0] == 1


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_what_comes_later_is_stored_where_it_waits(take: Take, encoding: int) -> None:
    waiting = Waiting()
    usual = {"park": waiting.park}
    delayed = [
        frame(fields(e=str(queue), i=f"UNIQ_KEY\x01a-{queue}_b\x02DELAY\x01{level}"), encoding=encoding)
        for queue, level in ((3, 2), (1, 1), (2, 2))
    ]
    timed = frame(fields(i=f"UNIQ_KEY\x01{KEY}\x02TIMER_DELAY_SEC\x013\x02"), encoding=encoding)
    frames = [*delayed, timed, frame(encoding=encoding), delayed[0]]
    (count, records, entries, answers, moved, messages), after = run(take, frames, **usual)
    # Behind the four queues of the topic: those where messages wait.
    assert (count, messages, moved, after) == (3, 3, [(5, 20), (4, 10)], [0, 1, 2, 3, 11, 22, 30])
    stored = decode_records(records)
    assert [(m.topic, m.queue_id, m.queue_offset) for m in stored] == [
        ("LEVELS", 1, 20),
        ("LEVELS", 0, 10),
        ("LEVELS", 1, 21),
    ]
    assert [m.packed_properties for m in stored] == [
        b"UNIQ_KEY\x01a-%d_b\x02DELAY\x01%d\x02%bREAL_TOPIC\x01T\x02REAL_QID\x01%d\x02"
        % (queue, level, ADDED, queue)
        for queue, level in ((3, 2), (1, 1), (2, 2))
    ]
    assert [(e[2], e[3], e[7], e[8]) for e in entries] == [
        (m.queue_id, m.queue_offset, b"LEVELS", m.packed_properties) for m in stored
    ]
    told = [decode_command(*one).header(SendAnswer) for one in FrameSplitter().feed(answers)]
    assert [(one.queue_id, one.queue_offset, one.transaction_id, one.recall_handle) for one in told] == [
        (3, 20, "a-3_b", None),
        (1, 10, "a-1_b", None),
        (2, 21, "a-2_b", None),
    ]
    # Each run is of one topic.
    (count, _, entries, answers, moved, _), _ = run(take, frames, at=3, **usual)
    assert (count, moved, entries[0][7]) == (1, [(6, 30)], b"TIMES")
    (told_later,) = [decode_command(*one).header(SendAnswer) for one in FrameSplitter().feed(answers)]
    assert (told_later.queue_id, told_later.queue_offset, told_later.recall_handle) == (0, 30, "djEgVCBi")
    assert run(take, frames, at=4, **usual)[0][0] == 1
    assert run(take, frames, at=5, **usual)[0][0] == 1


@pytest.mark.parametrize("take", TAKERS)
def test_of_what_comes_later_nobody_is_asked_without_need(take: Take) -> None:
    waiting = Waiting()
    usual = {"park": waiting.park}
    own = f"UNIQ_KEY\x01{KEY}\x02DELAY\x011\x02"
    for left in (
        frame(fields(e="4", i=own)),
        frame(fields(i=own), b""),
        frame(fields(i=own), encode_batch([(0, b"b", b"")]), code=320),
        frame(fields(b="U", i=own)),
    ):
        assert run(take, [left], **usual)[0] is None
    assert waiting.asked == []
    assert run(take, [frame(fields(i=own.replace("DELAY\x011", "DELAY\x019")))], **usual)[0] is None
    assert len(waiting.asked) == 1
    size = len(run(take, [frame(fields(i=own))], **usual)[0][1])
    assert run(take, [frame(fields(i=own))], rules=rules(body_bytes_max=size), **usual)[0][0] == 1
    assert run(take, [frame(fields(i=own))], rules=rules(body_bytes_max=size - 1), **usual)[0] is None
    assert run(take, [frame(fields(i=own))], file_end=END + size + 7, **usual)[0] is None


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@pytest.mark.parametrize(
    "answer", [7, (), (b"T", b"T", 0, None, "text", b""), (b"T", b"T", 0, None, b"", b"")]
)
def test_compiled_refuses_wrong_places_to_wait(answer: object) -> None:
    assert CORE is not None
    wrong: Any = lambda *_: answer  # noqa: E731
    frames = [frame(fields(i=f"UNIQ_KEY\x01{KEY}\x02DELAY\x011\x02"))]
    with pytest.raises((TypeError, AttributeError)):
        CORE.take_sends(frames, 0, targets(), rules(), wrong, BORN, END, FILE_END, NOW, None)


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("by", [None, ME])
def test_a_run_holds_what_it_uses_while_others_are_asked(take: Take, by: Signer | None) -> None:
    """Who is asked where a message waits may forget the topic, or hear that the connection is gone."""
    delayed = sign(fields(i=f"UNIQ_KEY\x01{KEY}\x02DELAY\x011\x02"), b"hello", "me", "secret")
    expected, _ = run(take, [frame(delayed)] * 2, park=Waiting().park)
    frames = [frame(delayed) for _ in range(2)]
    waiting = Waiting()
    known = targets()

    def forgetful(topic: bytes, queue_id: int, properties: bytes) -> ParkedSend | None:
        for name in list(known):
            known[name][2].clear()
        known.clear()
        del frames[1:]
        frames[0] = frame()
        return waiting.park(topic, queue_id, properties)

    taken = take(frames, 0, known, rules(), forgetful, BORN, END, FILE_END, NOW, by)
    assert taken is not None
    assert taken[0] == 1
    assert expected[1].startswith(taken[1])
    assert waiting.levels[0].next_offset == 11


class Stubborn(Queue):
    """A queue that cannot be moved on."""

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise RuntimeError("it stays where it is")
        super().__setattr__(name, value)


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("stubborn", [0, 1, 3])
def test_either_all_queues_move_on_or_none(take: Take, stubborn: int) -> None:
    known = targets(first=100)
    known[b"T"][2][stubborn] = Stubborn(100 + stubborn)
    frames = [frame(fields(e=str(number))) for number in range(4)]
    with pytest.raises(RuntimeError, match="it stays where it is"):
        run(take, frames, known)
    assert [queue.next_offset for queue in known[b"T"][2].values()] == [100, 101, 102, 103]


@pytest.mark.parametrize("take", TAKERS)
def test_more_queues_than_a_run_may_have(take: Take) -> None:
    frames = [frame(fields(e=str(number))) for number in range(70)]
    assert run(take, frames, targets(queues=70))[0][0] == 64


# --- fields that are not known, and signatures ---------------------------------------------------------


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize(
    "name",
    [
        "ns",
        "nsd",
        "bname",
        "lo",
        "ReqT",
        "__ZONE_NAME",
        "o",
        "A",
        "accessKey",
        "Signature2",
        "topic",
        "é",
        "ab",
    ],
)
def test_a_send_with_a_field_that_is_not_known_is_left(take: Take, encoding: int, name: str) -> None:
    for own in ({name: "x", **fields()}, {**fields(), name: "x"}):
        for code, body in ((310, b"hello"), (320, ONE_ITEM)):
            odd = frame(own, body, code=code, encoding=encoding)
            assert run(take, [odd]) == (None, [0, 1, 2, 3])
            (count, *_), after = run(take, [frame(), odd, frame()])
            assert (count, after) == (1, [1, 1, 2, 3])


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("kind", ["json", "binary"])
def test_what_apaches_clients_send_has_known_fields_and_is_taken(take: Take, kind: str) -> None:
    sends = [
        FrameSplitter().feed(row.frame)[0]
        for row in golden.rows(kind)
        if row.sender == "client" and row.header["code"] in (310, 320)
    ]
    assert len(sends) > 10
    taken = 0
    for one in sends:
        command = decode_command(*one)
        assert command.fields.keys() <= KNOWN_FIELDS
        known = targets(queues=16, topic=command.fields["b"].encode())
        taken += run(take, [one], known)[0] is not None
    assert taken > 5  # the others are of transactions


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("name", ["AccessKey", "SecurityToken", "Signature"])
def test_where_nobody_must_sign_a_signature_says_as_much_as_none(
    take: Take, encoding: int, name: str
) -> None:
    for own in ({name: "x", **fields()}, {**fields(), name: "x"}):
        signed = frame(own, encoding=encoding)
        assert run(take, [signed]) == run(take, [frame(encoding=encoding)])
        assert run(take, [signed], signer=ME) == (None, [0, 1, 2, 3])


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("token", [None, "a token"])
@pytest.mark.parametrize("code", [310, 320])
@pytest.mark.parametrize("secret", ["s", "secret", "x" * 64, "y" * 65, "ü" * 50])
def test_what_the_signer_has_signed_is_taken(
    take: Take, encoding: int, token: str | None, code: int, secret: str
) -> None:
    body = b"\x00body" if code == 310 else ONE_ITEM
    own = fields(i=f'UNIQ_KEY\x01{KEY}\x02x\x01ü"\\\n\x02', l="16", j=None)
    signed = sign(own, body, "me", secret, token)
    one = frame(signed, body, code=code, encoding=encoding)
    # A signature changes nothing of what is stored and answered. In whichever order the fields come.
    expected = run(take, [frame(own, body, code=code, encoding=encoding)])
    assert run(take, [one], signer=signer("me", secret)) == expected
    turned = frame(dict(reversed(signed.items())), body, code=code, encoding=encoding)
    assert run(take, [turned], signer=signer("me", secret)) == expected
    assert run(take, [one], signer=signer("me", secret + "2")) == (None, [0, 1, 2, 3])


@pytest.mark.parametrize("take", TAKERS)
def test_bodies_of_every_length_are_covered_by_the_signature(take: Take) -> None:
    """What is hashed ends at every place of a block, and has a whole number of blocks or not."""
    for length in (*range(1, 200), 1000, 4096, 100_000):
        body = bytes(range(256)) * (length // 256 + 1)
        body = body[:length]
        one = frame(sign(fields(), body, "me", "secret"), body)
        assert run(take, [one], signer=ME)[0][0] == 1, length
        other = (*one[:2], body[:-1] + bytes([body[-1] ^ 1]))
        assert run(take, [other], signer=ME)[0] is None, length


@pytest.mark.parametrize("take", TAKERS)
def test_every_frame_of_a_run_is_checked(take: Take) -> None:
    """Two at once where that is quicker, of whatever lengths; the one that is wrong ends the run."""
    bodies = [b"x" * length for length in (1, 64, 65, 1, 500, 20, 3, 3, 129, 63, 4000, 1, 56)]
    good = [frame(sign(fields(e=str(n % 4)), body, "me", "secret"), body) for n, body in enumerate(bodies)]
    for at in (0, 1):
        expected = run(take, [frame(fields(e=str(n % 4)), body) for n, body in enumerate(bodies)], at=at)
        assert run(take, good, at=at, signer=ME) == expected
        for wrong in range(at, len(good)):
            encoding, header, body = good[wrong]
            frames = [*good[:wrong], (encoding, header, bytes([body[0] ^ 1]) + body[1:]), *good[wrong + 1 :]]
            taken, _ = run(take, frames, at=at, signer=ME)
            assert (taken[0] if taken else 0) == wrong - at


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
def test_compiled_hears_of_a_wrong_frame_when_its_turn_has_come() -> None:
    assert CORE is not None
    good, wrong = frame(GOOD), (0, "text", b"")
    for number in (1, 2, 3):
        with pytest.raises(TypeError, match="a frame is a tuple"):
            run(CORE.take_sends, [good] * number + [wrong], signer=ME)
    assert run(CORE.take_sends, [good, frame(), wrong], signer=ME)[0][0] == 1


def signed_fields(
    body: bytes = b"hello", key: str = "me", secret: str = "secret", **more: str | None
) -> dict[str, str]:
    return sign(fields(**more), body, key, secret)


GOOD = signed_fields()
# What is not taken in a run of ME, whatever else may be right about it.
NOT_SIGNED = {
    "not at all": frame(),
    "no signature": frame({name: value for name, value in GOOD.items() if name != "Signature"}),
    "an empty signature": frame({**GOOD, "Signature": ""}),
    "no access key": frame({name: value for name, value in GOOD.items() if name != "AccessKey"}),
    "no access key, and signed without": frame(
        {**fields(), "Signature": signature(fields(), b"hello", "secret")}
    ),
    "an empty access key": frame(signed_fields(key="")),
    "another user": frame(signed_fields(key="you", secret="other")),
    "another user, the same secret": frame(signed_fields(key="you")),
    "a longer name": frame(signed_fields(key="mea")),
    "a shorter name": frame(signed_fields(key="m")),
    "another secret": frame(signed_fields(secret="guess")),
    "a body that is not the signed one": frame(GOOD, b"hallo"),
    "a longer body": frame(GOOD, b"hello "),
    "another topic": frame({**GOOD, "b": "U"}),
    "another queue": frame({**GOOD, "e": "1"}),
    "other properties": frame({**GOOD, "i": GOOD["i"] + "x\x01y\x02"}),
    "a field more": frame({**GOOD, "l": "1"}),
    "a token that was not signed": frame({**GOOD, "SecurityToken": "t"}),
    "a token taken away": frame(
        {
            name: value
            for name, value in sign(fields(), b"hello", "me", "secret", "t").items()
            if name != "SecurityToken"
        }
    ),
    "another letter in the signature": frame({**GOOD, "Signature": "A" + GOOD["Signature"][1:]}),
    "the signature's end changed": frame({**GOOD, "Signature": GOOD["Signature"][:-1] + "A"}),
    "the signature shorter": frame({**GOOD, "Signature": GOOD["Signature"][:-1]}),
    "the signature longer": frame({**GOOD, "Signature": GOOD["Signature"] + "="}),
    "the digest in hex": frame({**GOOD, "Signature": "ab" * 20}),
}


@pytest.mark.parametrize("take", TAKERS)
@pytest.mark.parametrize("what", NOT_SIGNED)
def test_what_the_signer_has_not_signed_is_left(take: Take, what: str) -> None:
    good, bad = frame(GOOD), NOT_SIGNED[what]
    assert bad != good
    both = targets() | targets(topic=b"U")
    assert run(take, [bad], both, signer=ME)[0] is None
    (count, *_), after = run(take, [good, good, bad, good], signer=ME)
    assert (count, after) == (2, [2, 1, 2, 3])


@pytest.mark.parametrize("take", TAKERS)
def test_of_a_field_given_twice_none_counts_but_the_one_that_was_signed(take: Take) -> None:
    encoding, header, body = frame(GOOD)
    for name, other in (("e", "1"), ("AccessKey", "you"), ("Signature", "x"), ("b", "U")):
        twice = header.replace(b'"extFields":{', b'"extFields":{"%b":"%b",' % (name.encode(), other.encode()))
        assert twice != header
        taken, _ = run(take, [(encoding, twice, body)], signer=ME)
        # The twin reads JSON as the handlers do, for whom the last one counts.
        assert taken is None or (take is plain_sends._take_sends and taken[2][0][2] == 0)


@pytest.mark.parametrize("take", TAKERS)
def test_what_comes_later_is_parked_only_for_the_signer(take: Take) -> None:
    own = fields(i=f"UNIQ_KEY\x01{KEY}\x02DELAY\x011\x02")
    good, bad = (frame(sign(own, b"hello", "me", secret)) for secret in ("secret", "guess"))
    waiting = Waiting()
    usual = {"park": waiting.park, "signer": ME}
    assert run(take, [good, bad], **usual)[0][0] == 1
    assert run(take, [frame(own)], **usual)[0] is None
    assert len(waiting.asked) == 1


@pytest.mark.parametrize("take", TAKERS)
def test_sends_as_go_clients_write_and_sign_them(take: Take) -> None:
    """Go's client writes its JSON header by a struct: other names first, language GO, all fields as text, and
    its batches with one letter too; its own signing sorts names as Java does."""
    own = {
        "a": "producers", "b": "T", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000",
        "h": "0", "i": f"UNIQ_KEY\x01{KEY}\x02TAGS\x01a\x02", "j": "0", "k": "false", "l": "0", "m": "true",
    }  # fmt: skip
    items = encode_batch([(0, b"one", b"TAGS\x01a\x02"), (0, b"two", b"")])
    signed = sign(own, items, "me", "secret")
    ext = ",".join(f'"{name}":"{value}"' for name, value in sorted(signed.items()))
    ext = ext.replace("\x01", "\\u0001").replace("\x02", "\\u0002")
    header = b'{"code":320,"language":"GO","version":317,"opaque":5,"flag":0,"extFields":{%b}}' % ext.encode()
    one: Frame = (JSON, header, items)
    taken, after = run(take, [one], signer=ME)
    assert (taken[0], taken[5], after) == (1, 2, [0, 1, 4, 3])
    assert run(take, [one], signer=signer("me", "guess"))[0] is None


text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=6)
packed = st.lists(
    st.tuples(
        st.sampled_from(["UNIQ_KEY", "TAGS", "KEYS", "WAIT", "DELAY", "TIMER_DELAY_SEC", "x", ""]),
        text | st.sampled_from([KEY, "1", "2"]),
    ),
    max_size=5,
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs))
numbers = st.integers(-3, 5).map(str) | st.sampled_from(
    [
        "2147483647",
        "2147483648",
        "-2147483648",
        "9223372036854775807",
        "007",
        "+1",
        "1.0",
        "",
        " 1",
        "-0",
        "1e2",
    ]
)
item = st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=20), st.binary(max_size=20))


@st.composite
def sends(draw: st.DrawFn) -> Frame:
    """A send that is plain, or nearly."""
    changes: dict[str, str | None] = {}
    for name in draw(st.lists(st.sampled_from("abcdefghijklmn"), max_size=2)):
        changes[name] = draw(numbers | text | st.none() | st.sampled_from(["true", "false"]))
    if draw(st.booleans()):
        changes["i"] = draw(packed | st.just(f"UNIQ_KEY\x01{KEY}\x02")) + draw(packed)
    others = st.sampled_from(["AccessKey", "AccessKey", "Signature", "SecurityToken", "ns", "o", ""])
    for name in draw(st.lists(others, max_size=2)):
        changes[name] = draw(text | st.sampled_from(["me", "you"]))
    batch = draw(st.booleans())
    body = encode_batch(draw(st.lists(item, max_size=4))) if batch else draw(st.binary(max_size=20))
    own = fields(**changes)
    if draw(st.booleans()):
        own = sign(own, body, *draw(st.sampled_from([("me", "secret"), ("me", "secret"), ("you", "x")])))
    return frame(
        own,
        body,
        code=320 if batch else draw(st.sampled_from([310, 310, 310, 10, 3105])),
        flag=draw(st.sampled_from([0, 0, 0, 1, 2])),
        opaque=draw(st.integers(-(2**31), 2**31 - 1)),
        encoding=draw(st.sampled_from([JSON, BINARY])),
    )


@st.composite
def damaged(draw: st.DrawFn) -> Frame:
    encoding, header, body = draw(sends())
    where = draw(st.sampled_from(["header", "body", "encoding"]))
    if where == "encoding":
        return draw(st.integers(0, 255)), header, body
    data = bytearray(header if where == "header" else body)
    for _ in range(draw(st.integers(1, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return (encoding, bytes(data), body) if where == "header" else (encoding, header, bytes(data))


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@settings(max_examples=100, deadline=None)
@given(
    frames=st.lists(sends() | damaged(), min_size=1, max_size=4),
    wait_matters=st.booleans(),
    wide=st.booleans(),
    topic=st.sampled_from([b"T", b"T" * 130]),
    parks=st.booleans(),
    by=st.sampled_from([None, ME]),
)
def test_compiled_takes_what_python_takes_and_makes_the_same_of_it(
    frames: list[Frame],
    wait_matters: bool,
    wide: bool,
    topic: bytes,
    parks: bool,
    by: Signer | None,
) -> None:
    assert CORE is not None
    store_host = STORE_V6 if wide else STORE

    def usual() -> dict[str, Any]:
        park = Waiting().park if parks else None
        return {
            "rules": rules(wait_matters=wait_matters, store_host=store_host),
            "park": park,
            "signer": by,
        }

    frames = [
        (encoding, header.replace(b'"b":"T"', b'"b":"%b"' % topic), body) for encoding, header, body in frames
    ]
    for at in range(len(frames)):
        compiled = run(CORE.take_sends, frames, targets(topic=topic), at, **usual())
        if compiled[0] is not None:
            # Python may take more: it reads spellings that nobody writes.
            taken = frames[: at + compiled[0][0]]
            assert compiled == run(plain_sends._take_sends, taken, targets(topic=topic), at, **usual())
            for one in taken[at:]:
                command = decode_command(*one)
                assert command.fields.keys() <= KNOWN_FIELDS
                assert by is None or verify(command.fields, command.body, "secret", 479)


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@settings(max_examples=100, deadline=None)
@given(
    value=st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    encoding=st.sampled_from([JSON, BINARY]),
)
def test_compiled_takes_every_usual_message(value: str, encoding: int) -> None:
    """Not only what it takes must be right: what clients send must be taken, whatever its properties."""
    assert CORE is not None
    clean = value.replace("\x01", "").replace("\x02", "")
    own = fields(i=f"x\x01{clean}\x02UNIQ_KEY\x01{KEY}\x02")
    frames = [frame(own, encoding=encoding)]
    compiled = run(CORE.take_sends, frames)
    assert compiled == run(plain_sends._take_sends, frames)
    plain = not any(word.decode() in clean for word in STOPS)
    assert (compiled[0] is not None) == plain
    if plain:
        assert names.find(compiled[0][2][0][8], names.marker("x")) == (clean.encode() or None)


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (None,) * 10,
        ([frame()], 0, {}, (), None, BORN, 1, 1, 1, None),
        ([frame()], 0, {}, rules(body_bytes_max="many"), None, BORN, 1, 1, 1, None),
        ([frame()], 0, {}, rules(store_host=b"short"), None, BORN, 1, 1, 1, None),
        ([frame()], 0, {}, rules(stops=("text",)), None, BORN, 1, 1, 1, None),
        ([frame()], 0, {}, rules(stops=[b"DELAY"]), None, BORN, 1, 1, 1, None),
        ([frame()], -1, {}, rules(), None, BORN, 1, 1, 1, None),
        ([frame()], 0, {}, rules(), None, b"short", 1, 1, 1, None),
        ([frame()], 1 << 70, {}, rules(), None, BORN, 1, 1, 1, None),
        ([(0, "text", b"")], 0, {}, rules(), None, BORN, 1, 1, 1, None),
        ([()], 0, {}, rules(), None, BORN, 1, 1, 1, None),
        ([frame()], 0, {b"T": None}, rules(), None, BORN, 1, 1, 1, None),
        (
            [frame()],
            0,
            {b"T": (b"T", b"\x01T", {0: object()})},
            rules(),
            None,
            BORN,
            1,
            1 << 30,
            1,
            None,
        ),
        ([frame()], 0, {}, rules(), None, BORN, 1, 1, 1, "me"),
        ([frame()], 0, {}, rules(), None, BORN, 1, 1, 1, ()),
        ([frame()], 0, {}, rules(), None, BORN, 1, 1, 1, (b"me",)),
        ([frame()], 0, {}, rules(), None, BORN, 1, 1, 1, (b"me", b"secret")),
        ([frame()], 0, {}, rules(), None, BORN, 1, 1, 1, ("me", bytes(64), 1)),
    ],
)
def test_compiled_refuses_wrong_arguments(arguments: tuple[Any, ...]) -> None:
    assert CORE is not None
    with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)):
        CORE.take_sends(*arguments)
