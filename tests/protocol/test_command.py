"""Commands in both header encodings: golden bytes, tolerance, edges, arbitrary input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol import header_binary, header_json
from kerolox.protocol.codes import VERSION, Language, RequestCode
from kerolox.protocol.command import ANSWER, ONE_WAY, Command, decode_command, encode_answer, request
from kerolox.protocol.frame import BINARY, JSON, FrameSplitter
from kerolox.protocol.header import Header, wire

SEND_JSON = (
    b'{"code":310,"extFields":{"a":"PG","b":"TopicTest","c":"TBW102","d":"4","e":"2","f":"0","g":"1700000000000",'
    b'"h":"0","i":"UNIQ_KEY\\u00017F000001162E18B4AAC28E2F6D2A0000\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002",'
    b'"j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":5,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
SEND_BINARY = bytes.fromhex(
    "01360001df000000050000000000000000000000ce00016100000002504700016200000009546f70696354657374000163"
    "000000065442573130320001640000000134000165000000013200016600000001300001670000000d31373030303030303030"
    "30303000016800000001300001690000003e554e49515f4b4559013746303030303031313632453138423441414332384532463644"
    "3241303030300257414954017472756502544147530154616741020001"
    "6a000000013000016b0000000566616c736500016d0000000566616c736500016e0000000862726f6b65722d61"
)


class Ping(Header, frozen=True, kw_only=True, rename=wire(group="consumerGroup")):
    group: str
    queue_id: int
    offset: int = -1
    force: bool = False
    note: str | None = None


def one(frame: bytes) -> Command:
    (got,) = FrameSplitter().feed(frame)
    return decode_command(*got)


def test_the_golden_send_reads_the_same_in_both_encodings() -> None:
    plain = decode_command(JSON, SEND_JSON, b"hello")
    compact = decode_command(BINARY, SEND_BINARY, b"hello")
    for command in (plain, compact):
        assert (command.code, command.opaque, command.flag, command.version) == (310, 5, 0, 479)
        assert command.fields["i"].startswith("UNIQ_KEY\x017F0000")
        assert command.fields["n"] == "broker-a"
        assert command.body == b"hello"
    assert plain.fields == compact.fields


def test_the_golden_send_is_written_as_java_wrote_it() -> None:
    fields = decode_command(JSON, SEND_JSON, b"").fields
    common = {"code": 310, "flag": 0, "opaque": 5, "version": 479, "language": "JAVA", "remark": None}
    assert header_json.encode(fields=fields, **common) == SEND_JSON  # type: ignore[arg-type]
    assert header_binary.encode(fields=fields, **common) == SEND_BINARY  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.BATCH_ACK_MESSAGE])
def test_a_compact_header_keeps_the_codes_of_pop(code: RequestCode) -> None:
    assert one(request(code, None, opaque=1, encoding=BINARY).encode()).code == code


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_request_of_ours_comes_back_typed(encoding: int) -> None:
    sent = Ping(group="g", queue_id=-7, offset=2**63 - 1, force=True)
    command = one(request(38, sent, b"body", opaque=-(2**31), encoding=encoding).encode())
    assert command.header(Ping) == sent
    assert command.opaque == -(2**31)
    assert command.encoding == encoding
    assert not command.is_one_way
    assert command.fields == {
        "consumerGroup": "g",
        "queueId": "-7",
        "offset": str(2**63 - 1),
        "force": "true",
    }
    # Twice, because the second time the binary shape is remembered; and with other values of equal length.
    assert one(request(38, sent, opaque=1, encoding=encoding).encode()).header(Ping) == sent
    other = Ping(group="h", queue_id=-8, offset=2**63 - 2, force=True)
    assert one(request(38, other, opaque=1, encoding=encoding).encode()).header(Ping) == other


def test_a_shape_is_not_taken_for_another_of_equal_length() -> None:
    first = {"consumerGroup": "gg", "queueId": "1"}
    second = {"consumerGroup": "g", "queueId": "12"}  # same bytes in all
    for fields in (first, second, first):
        command = one(Command(1, fields=fields, encoding=BINARY).encode())
        assert command.header(Ping) == Ping(group=fields["consumerGroup"], queue_id=int(fields["queueId"]))


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_answers_go_in_kind(encoding: int) -> None:
    frame = encode_answer(encoding, 9, 17, Ping(group="g", queue_id=1), 'no "route" for\ttopic é', b"xyz")
    answer = one(frame)
    assert answer.is_answer
    assert answer.encoding == encoding
    assert (answer.code, answer.opaque, answer.version, answer.body) == (17, 9, VERSION, b"xyz")
    assert answer.remark == 'no "route" for\ttopic é'
    assert answer.header(Ping).queue_id == 1
    parts = encode_answer(
        encoding, 9, 17, Ping(group="g", queue_id=1), 'no "route" for\ttopic é', [b"x", b"yz"]
    )
    assert parts == frame


def test_an_answer_always_has_ext_fields() -> None:
    # Java dereferences the table of a send answer without looking whether it is there.
    assert b'"extFields":{}' in encode_answer(JSON, 1, 0)


@pytest.mark.parametrize(
    "text",
    [
        b'{"opaque":3,"code":34}',
        b'{ "opaque" : 3 , "code" : "34" , "who":{"a":[1]} }',
        b"{opaque:3,code:34}",
        b"{'opaque':3,'code':34.0,\"remark\":null}",
        b'{"code":34,"opaque":3,"language":"ELIXIR","extFields":null}',
        b'{"code":34,"opaque":3,"language":9}',
        b'{"code":34,"opaque":3,"extFields":{"consumerGroup":1,"x":null,"queueId":true}}',
    ],
)
def test_what_java_accepts_is_accepted(text: bytes) -> None:
    command = decode_command(JSON, text, b"")
    assert (command.code, command.opaque, command.flag, command.version, command.remark) == (
        34,
        3,
        0,
        0,
        None,
    )
    assert "x" not in command.fields


def test_foreign_field_values_become_text() -> None:
    command = decode_command(JSON, b'{"code":34,"opaque":3,"extFields":{"n":12,"t":true,"s":"x"}}', b"")
    assert command.fields == {"n": "12", "t": "true", "s": "x"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "header"),
        (b"[]", "not a JSON object"),
        (b'{"code":1}', "no opaque"),
        (b'{"code":1,"opaque":4294967295}', "opaque 4294967295"),
        (b'{"code":99999999999,"opaque":1}', "code"),
        (b'{"code":"x","opaque":1}', "code 'x'"),
        (b'{"code":1,"opaque":1,"extFields":[]}', "extFields"),
        (b'{"code":1,"opaque":1', ""),
        (b"\xff\xfe", ""),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(text: bytes, says: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_command(JSON, text, b"").fields  # noqa: B018 — the table may be what is wrong
    assert says in str(caught.value)


def test_unknown_header_encodings_are_refused() -> None:
    with pytest.raises(ProtocolError, match="encoding 7"):
        decode_command(7, b"{}", b"")


@given(st.sampled_from([JSON, BINARY, 2]), st.binary(max_size=200))
def test_arbitrary_headers_give_a_command_or_a_protocol_error(encoding: int, header: bytes) -> None:
    try:
        command = decode_command(encoding, header, b"")
        command.fields  # noqa: B018
    except ProtocolError:
        return
    try:
        command.header(Ping)
    except InvalidRequest:
        pass


@given(
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, ANSWER, ONE_WAY, 3]),
    st.none() | st.text(min_size=1, max_size=20),
    st.dictionaries(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=12), max_size=5),
    st.binary(max_size=20),
    st.sampled_from([JSON, BINARY]),
)
def test_round_trip(code, opaque, flag, remark, fields, body, encoding) -> None:  # type: ignore[no-untyped-def]
    sent = Command(
        code, opaque=opaque, flag=flag, remark=remark, fields=fields, body=body, encoding=encoding,
        language=Language.GO,
    )  # fmt: skip
    try:
        frame = sent.encode()
    except UnicodeEncodeError:
        return  # lone surrogates are no text
    got = one(frame)
    assert (got.code, got.opaque, got.flag, got.remark, got.body) == (code, opaque, flag, remark, body)
    assert got.fields == fields


def test_missing_and_wrong_fields_are_named() -> None:
    command = decode_command(JSON, b'{"code":1,"opaque":1,"extFields":{"consumerGroup":"g"}}', b"")
    with pytest.raises(InvalidRequest, match="queueId"):
        command.header(Ping)
    command = decode_command(
        JSON, b'{"code":1,"opaque":1,"extFields":{"consumerGroup":"g","queueId":"x"}}', b""
    )
    with pytest.raises(InvalidRequest, match="queueId"):
        command.header(Ping)


def test_java_leniency_of_values() -> None:
    fields = {"consumerGroup": "g", "queueId": "+5", "force": "TRUE"}
    assert Command(1, fields=fields).header(Ping) == Ping(group="g", queue_id=5, force=True)
    fields = {"consumerGroup": "g", "queueId": "5", "force": "yes"}
    assert Command(1, fields=fields).header(Ping) == Ping(group="g", queue_id=5, force=False)


def test_hot_headers_decode_in_one_pass_and_only_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_json, "_ONE_PASS", {})
    header_json.decode_in_one_pass(310, Ping)
    hot = b'{"code":310,"extFields":{"consumerGroup":"g","queueId":"3"},"flag":0,"opaque":8,"version":1}'
    command = decode_command(JSON, hot, b"")
    assert command._typed == Ping(group="g", queue_id=3)
    assert command.header(Ping) is command._typed
    assert command.fields == {"consumerGroup": "g", "queueId": "3"}
    longer = decode_command(JSON, hot.replace(b"310", b"3105"), b"")
    assert longer.code == 3105
    assert longer._typed is None
    odd = decode_command(JSON, hot.replace(b'"queueId":"3"', b"queueId:'3'"), b"")
    assert odd.code == 310
    assert odd.header(Ping).queue_id == 3


def test_fields_that_are_not_utf8_read_as_java_reads_them() -> None:
    command = decode_command(JSON, b'{"code":1,"opaque":1,"extFields":{"a":"x\xff"}}', b"")
    assert command.fields == {"a": "x\ufffd"}
