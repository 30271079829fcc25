"""Headers: the exact wire names of every conversation, and what real peers send."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import decode_command
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.header import Header, decode_fields, decode_json_fields, encode_fields
from kerolox.protocol.header_binary import encode_run
from kerolox.protocol.header_json import UnusualHeader
from kerolox.protocol.headers.heartbeat import HeartbeatAnswer, UnregisterClientRequest
from kerolox.protocol.headers.offset import BoundaryType, MaxOffsetRequest, SearchOffsetRequest
from kerolox.protocol.headers.pop import PopRequest
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.headers.query import QueryMessageRequest
from kerolox.protocol.headers.registration import RegisterBrokerRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.headers.send import SendAnswer, SendRequest, SendRequestV2
from kerolox.protocol.limits import EXT_FIELD_COUNT_MAX
from tests.protocol.answer_headers import ANSWER_HEADERS
from tests.served import REQUEST_HEADERS

SEND_V1 = (
    "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties? "
    "reconsumeTimes? unitMode? maxReconsumeTimes? batch? bname?"
)
SEND_V2 = "a b c d e f g h i? j? k? l? m? n?"
PULL = (
    "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis "
    "subscription? subVersion expressionType? maxMsgBytes? requestSource? proxyFrowardClientId? bname? lo? "
    "scanBytes?"  # ours alone: see FRAME.md
)
BROKER = "brokerName brokerAddr clusterName brokerId"
ACK = "consumerGroup topic queueId extraInfo offset"
RESET = "topic group timestamp? isForce? queueId? offset?"

# Wire names per request code; those with ? may be missing.
REQUESTS = {
    100: "namespace? key? value?",
    101: "namespace key",
    102: "namespace? key?",
    103: f"{BROKER} haServerAddr? heartbeatTimeoutMillis? enableActingMaster? compressed? bodyCrc32? "
    "__ZONE_NAME? "
    "brokerIdentity? brokerStart?",  # ours alone, as those of 904
    104: BROKER,
    105: "topic acceptStandardJsonOnly? __ZONE_NAME? __ZONE_MODE?",
    106: None,
    205: "brokerName",
    206: None,
    216: "topic clusterName?",
    217: "topic",
    219: "namespace",
    224: "cluster",
    304: None,
    311: None,
    318: None,
    319: None,
    322: BROKER,
    327: "brokerName",
    901: "clusterName brokerName",
    904: "clusterName brokerAddr brokerName brokerId? epoch? maxOffset? confirmOffset? "
    "heartbeatTimeoutMills? electionPriority? "
    "brokerStart? knownMasterEpoch? knownMasterId? knownSetEpoch? knownSet? knownLeads? keptOffset? "
    "followerRefusal?",
    905: "minBrokerId? brokerName? minBrokerAddr? offlineBrokerAddr? haBrokerAddr?",
    10: SEND_V1,
    310: SEND_V2,
    320: SEND_V2,
    324: SEND_V1,
    325: SEND_V2,
    36: "offset group delayLevel originMsgId? originTopic? unitMode? maxReconsumeTimes? bname? "
    "keroloxReason?",
    11: PULL,
    361: PULL,
    12: "topic key maxNum beginTimestamp endTimestamp _UNIQUE_KEY_QUERY?",
    33: "offset topic?",
    14: "consumerGroup topic queueId setZeroIfNotFound? bname?",
    15: "consumerGroup topic queueId commitOffset bname?",
    29: "topic queueId timestamp boundaryType? bname?",
    30: "topic queueId committed? bname?",
    31: "topic queueId bname?",
    32: "topic queueId bname?",
    34: None,
    35: "clientID producerGroup? consumerGroup?",
    46: None,
    38: "consumerGroup",
    41: None,
    42: None,
    37: "producerGroup tranStateTableOffset commitLogOffset commitOrRollback fromTransactionCheck? msgId? "
    "transactionId? topic? bname?",
    370: "topic recallHandle producerGroup? bname?",
    400: None,
    200050: "consumerGroup topic queueId? maxMsgNums? invisibleTime? pollTime? bornTime? initMode? expType? "
    "exp? order? attemptId? bname?",
    200051: f"{ACK} bname?",
    200151: None,
    200052: "topic consumerGroup queueId? maxMsgNums? bname?",
    200053: f"{ACK} invisibleTime bname?",
    200054: "consumerGroup topic queueId? pollTime? bornTime? order? attemptId? bname?",
    200055: "consumerGroup topic queueId? bname?",
    39: "topic? tranStateTableOffset commitLogOffset msgId? transactionId? offsetMsgId? bname?",
    40: "consumerGroup",
    220: RESET,
    221: "topic group clientAddr?",
    307: "consumerGroup clientId jstackEnable?",
    309: "consumerGroup clientId? msgId? brokerName? topic? topicSysFlag? groupSysFlag?",
    326: "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag "
    "properties? reconsumeTimes? unitMode? bornHost storeHost storeTimestamp?",
    17: "topic defaultTopic? readQueueNums writeQueueNums perm topicFilterType? topicSysFlag? order? "
    "attributes? force?",
    21: "topicSeq? maxTopicNum? dataVersion?",
    25: "acceptLoss?",
    26: None,
    200: None,
    201: "groupSeq? maxGroupNum? dataVersion?",
    202: "topic",
    203: "consumerGroup",
    204: "producerGroup",
    207: "groupName cleanOffset?",
    208: "consumerGroup topic? topicList?",
    215: "topic",
    222: RESET,
    223: "topic group clientAddr?",
    300: "topic",
    303: "topic group",
    308: "topic compareGroup filterGroups?",
    314: "srcGroup destGroup topic? offline?",
    315: "statsName statsKey",
    317: "isOrder?",
    321: "topic queueId? index? count? consumerGroup?",
    323: "msgId? topic?",
    343: "group",
    345: "group topic?",
    351: "topic lo?",
    352: "group",
    353: "group topic readable?",
    354: "topic checkStoreTime?",
    355: "configType",
    902: "configPath?",
    903: "brokerName brokerClusterName brokerId",
    906: "masterHaAddress? masterFlushOffset? masterAddress?",
    908: "masterFlushOffset",
    3001: "username?",
    3005: "filter?",
    3008: "subject? policyType? resource?",
    3010: "subjectFilter? resourceFilter?",
    3002: "username?",
    3003: "username?",
    3004: "username?",
    3006: "subject?",
    3007: "subject?",
    3009: "subject?",
    50: "accessKey secretKey? whiteRemoteAddress? admin? defaultTopicPerm? defaultGroupPerm? topicPerms? "
    "groupPerms?",
    51: "accessKey",
    53: "globalWhiteAddrs aclFileFullPath?",
    513: "topic readQueueNums writeQueueNums perm defaultTopic? topicFilterType? topicSysFlag? order? "
    "attributes? force?",
    1001: "brokerName? masterBrokerId? masterEpoch? invokeTime?",
    1002: "clusterName? brokerName? brokerId? designateElect? invokeTime? "
    "brokerStart? acceptedLoss?",  # ours alone
    1003: "clusterName? brokerName? brokerId? brokerAddress? invokeTime? "
    "epoch? maxOffset? confirmOffset? electionPriority? "  # ours alone from here on
    "brokerStart? knownMasterEpoch? knownMasterId? knownSetEpoch? knownSet? knownLeads? keptOffset? "
    "followerRefusal?",
    1004: "brokerName?",
    1006: "allGroups?",
    1008: "masterAddress? masterEpoch? syncStateSetEpoch? masterBrokerId?",
    1011: "brokerName clusterName? brokerControllerIdsToClean? isCleanLivingBroker? invokeTime?",
    1012: "clusterName? brokerName?",
    1013: "clusterName? brokerName? appliedBrokerId? registerCheckCode?",
    910001: "brokerId brokerAddress life? serial? holdMillis?",  # ours alone
}

SENT = "msgId queueId queueOffset transactionId? batchUniqId? recallHandle? MSG_REGION? TRACE_ON?"
PULLED = (
    "suggestWhichBrokerId nextBeginOffset minOffset maxOffset offsetDelta? topicSysFlag? groupSysFlag? "
    "forbiddenType?"
)
ANSWERS = {
    101: "value?",
    103: "haServerAddr? masterAddr?",
    105: None,
    205: "wipeTopicCount",
    322: "changed",
    327: "addTopicCount",
    10: SENT,
    310: SENT,
    320: SENT,
    325: SENT,
    36: None,
    11: PULLED,
    361: PULLED,
    12: "indexLastUpdateTimestamp indexLastUpdatePhyoffset",
    14: "offset",
    29: "offset",
    30: "offset",
    31: "offset",
    32: "timestamp",
    34: "IS_SUPPORT_HEART_BEAT_V2? IS_SUB_CHANGE?",
    370: "msgId MSG_REGION?",
    200050: "popTime? invisibleTime? reviveQid? restNum? startOffsetInfo? msgOffsetInfo? orderCountInfo?",
    200053: "popTime? invisibleTime? reviveQid?",
    200054: "hasMsg? pollingFull?",
    200055: "pollingNum?",
    21: "totalTopicNum?",
    26: "version",
    201: "totalGroupNum?",
    906: "masterHaAddress? masterFlushOffset? masterAddress?",
    52: "version allAclFileVersion? brokerName brokerAddr clusterName",
    324: SENT,
    1001: "newSyncStateSetEpoch?",
    1002: "masterBrokerId? masterAddress? masterEpoch? syncStateSetEpoch?",
    1003: "clusterName? brokerName? masterBrokerId? masterAddress? masterEpoch? syncStateSetEpoch?",
    1004: "masterBrokerId? masterAddress? masterEpoch?",
    1005: "group? controllerLeaderId? controllerLeaderAddress? isLeader? peers?",
    1012: "clusterName? brokerName? nextBrokerId?",
    1013: "clusterName? brokerName?",
    200052: "popTime? invisibleTime? reviveQid? restNum? startOffsetInfo? msgOffsetInfo? orderCountInfo?",
}


def spelled(cls: type[Header] | None) -> set[str] | None:
    if cls is None:
        return None
    return {field.encode_name + ("" if field.required else "?") for field in msgspec.structs.fields(cls)}


@pytest.mark.parametrize(("code", "names"), REQUESTS.items())
def test_request_wire_names(code: int, names: str | None) -> None:
    assert spelled(REQUEST_HEADERS[code]) == (None if names is None else set(names.split()))


@pytest.mark.parametrize(("code", "names"), ANSWERS.items())
def test_answer_wire_names(code: int, names: str | None) -> None:
    assert spelled(ANSWER_HEADERS[code]) == (None if names is None else set(names.split()))


def test_tables_know_every_code() -> None:
    assert set(REQUEST_HEADERS) == set(ANSWER_HEADERS) == set(RequestCode)


def test_every_header_is_spelled_out_here() -> None:
    assert {code for code, header in REQUEST_HEADERS.items() if header} - set(REQUESTS) == set()
    assert {code for code, header in ANSWER_HEADERS.items() if header} - set(ANSWERS) == set()


# Taken from a Java 5.3.3 client and broker.
JAVA_SEND = (
    r'{"a":"PG","b":"TopicTest","c":"TBW102","d":"4","e":"2","f":"0","g":"1700000000000","h":"0",'
    r'"i":"UNIQ_KEY\u00017F000001162E18B4AAC28E2F6D2A0000\u0002WAIT\u0001true\u0002TAGS\u0001TagA\u0002",'
    r'"j":"0","k":"false","m":"false","n":"broker-a"}'
)
JAVA_SENT = (
    '{"queueId":"2","transactionId":"7F000001162E18B4AAC28E2F6D2A0000",'
    '"msgId":"0A00000100002A9F0000000000000400","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    '"queueOffset":"7"}'
)
JAVA_PULL = (
    '{"queueId":"0","maxMsgBytes":"262144","maxMsgNums":"32","sysFlag":"3","suspendTimeoutMillis":"15000",'
    '"commitOffset":"7","bname":"broker-a","topic":"TopicTest","queueOffset":"7","expressionType":"TAG",'
    '"subVersion":"1700000000000","consumerGroup":"CG"}'
)
JAVA_PULLED = (
    '{"suggestWhichBrokerId":"0","groupSysFlag":"0","nextBeginOffset":"8","maxOffset":"8","minOffset":"0",'
    '"topicSysFlag":"0"}'
)


@pytest.mark.parametrize(
    ("text", "cls"),
    [
        (JAVA_SEND, SendRequestV2),
        (JAVA_SENT, SendAnswer),
        (JAVA_PULL, PullRequest),
        (JAVA_PULLED, PullAnswer),
        ('{"topic":"TopicTest"}', RouteRequest),
    ],
)
def test_javas_own_headers_round_trip(text: str, cls: type[Header]) -> None:
    header = decode_json_fields(text.encode(), cls)
    assert encode_fields(header) == json.loads(text)
    assert decode_fields(json.loads(text), cls) == header


def test_java_send_values() -> None:
    sent = decode_json_fields(JAVA_SEND.encode(), SendRequestV2)
    assert (sent.producer_group, sent.topic, sent.default_topic) == ("PG", "TopicTest", "TBW102")
    assert (sent.default_topic_queue_nums, sent.queue_id, sent.sys_flag, sent.flag) == (4, 2, 0, 0)
    assert sent.born_timestamp == 1700000000000
    assert sent.unit_mode is False
    assert sent.max_reconsume_times is None
    assert sent.broker_name == "broker-a"


def test_both_spellings_of_a_send_are_one_to_a_handler() -> None:
    assert set(SendRequest.__struct_fields__) == set(SendRequestV2.__struct_fields__)
    assert issubclass(SendRequestV2, SendRequest)
    values: dict[str, Any] = {
        "producer_group": "PG",
        "topic": "T",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": -1,
        "sys_flag": 1,
        "born_timestamp": 5,
        "flag": 0,
        "max_reconsume_times": 0,
    }
    long, short = SendRequest(**values), SendRequestV2(**values)
    assert encode_fields(long)["maxReconsumeTimes"] == encode_fields(short)["l"] == "0"
    assert msgspec.structs.asdict(decode_fields(encode_fields(long), SendRequest)) == msgspec.structs.asdict(
        decode_fields(encode_fields(short), SendRequestV2)
    )


def test_odd_spellings() -> None:
    assert encode_fields(UnregisterClientRequest(client_id="c", producer_group="p")) == {
        "clientID": "c",
        "producerGroup": "p",
    }
    assert encode_fields(HeartbeatAnswer(supports_v2=True, subscription_changed=False)) == {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "false",
    }


def test_presence_of_enable_acting_master_is_kept() -> None:
    fields = {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0", "bodyCrc32": "5"}
    request = decode_fields(fields, RegisterBrokerRequest)
    assert request.enable_acting_master is None
    assert (request.compressed, request.body_crc32) == (False, 5)
    request = decode_fields(fields | {"enableActingMaster": "false"}, RegisterBrokerRequest)
    assert request.enable_acting_master is False


@pytest.mark.parametrize(
    ("text", "value"), [("UPPER", "UPPER"), ("upper", "UPPER"), ("Lower", "LOWER"), ("x", "LOWER")]
)
def test_boundary_type_in_any_case(text: str, value: str) -> None:
    fields = {"topic": "t", "queueId": "1", "timestamp": "2", "boundaryType": text}
    header = decode_fields(fields, SearchOffsetRequest)
    assert header.boundary_type is BoundaryType(value)
    assert encode_fields(header)["boundaryType"] == value


def test_javas_leniency_about_values() -> None:
    assert decode_fields({"topic": "t", "queueId": "+7", "committed": "FALSE"}, MaxOffsetRequest) == (
        MaxOffsetRequest(topic="t", queue_id=7, committed=False)
    )
    unusual = b'{code:30,opaque:1,extFields:{topic:"t",queueId:7,committed:true,other:1}}'
    assert decode_command(JSON, unusual, b"").header(MaxOffsetRequest) == (
        MaxOffsetRequest(topic="t", queue_id=7)
    )
    mixed = b'{"topic":"t\xff","queueId":7,"committed":true,"other":[1]}'
    assert decode_json_fields(mixed, MaxOffsetRequest) == MaxOffsetRequest(topic="t\ufffd", queue_id=7)
    query = {"topic": "t", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    assert decode_fields(query, QueryMessageRequest).unique_key is False
    assert decode_fields(query | {"_UNIQUE_KEY_QUERY": "true"}, QueryMessageRequest).unique_key is True
    assert decode_fields({"consumerGroup": "g", "topic": "t"}, PopRequest).order is False


def test_a_header_that_nests_deep_is_refused() -> None:
    """The strict reader ends the stack of its caller on such bytes."""
    deep = b"[" * 400_000 + b"]" * 400_000
    for raw in (
        b'{"code":30,"opaque":1,"x":%b}' % deep,
        b'{"code":310,"opaque":1,"extFields":{"x":%b}}' % deep,
        b'{"x":%b}' % deep[390_000:410_000],
    ):
        with pytest.raises(ProtocolError):
            decode_command(JSON, raw, b"").header(MaxOffsetRequest)
        with pytest.raises(ProtocolError):
            decode_json_fields(raw, MaxOffsetRequest)


def test_a_spelling_that_is_not_strict_is_told_before_it_is_read() -> None:
    with pytest.raises(UnusualHeader):
        decode_command(JSON, b"{code:30,opaque:1}", b"", is_strict=True)
    assert decode_command(JSON, b'{"code":30,"opaque":1}', b"", is_strict=True).code == 30


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": "t"},
        {"topic": "t", "queueId": "seven"},
        {"topic": "t", "queueId": str(2**31)},
        {"topic": "t", "queueId": "-99999999999999999999999"},
    ],
)
def test_missing_and_impossible_values_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="MaxOffsetRequest"):
        decode_fields(fields, MaxOffsetRequest)
    with pytest.raises(InvalidRequest, match="MaxOffsetRequest"):
        decode_json_fields(json.dumps(fields).encode(), MaxOffsetRequest)


HEADERS = sorted(
    {cls for table in (REQUEST_HEADERS, ANSWER_HEADERS) for cls in table.values() if cls is not None},
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("cls", HEADERS)
def test_every_header_round_trips(cls: type[Header]) -> None:
    values: dict[str, Any] = {}
    for number, field in enumerate(msgspec.structs.fields(cls)):
        kind = str(field.type)
        if "BoundaryType" in kind:
            values[field.name] = BoundaryType.UPPER
        elif "bool" in kind:
            values[field.name] = number % 2 == 0
        elif "int" in kind:
            values[field.name] = number - 1
        else:
            values[field.name] = f"text {number}"
    header = cls(**values)
    fields = encode_fields(header)
    assert len(fields) == len(values)
    assert decode_fields(fields, cls) == header
    assert decode_json_fields(json.dumps(fields).encode(), cls) == header


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(HEADERS), st.binary(max_size=80) | st.dictionaries(st.text(), st.text()).map(json.dumps)
)
def test_any_fields_are_read_or_refused(cls: type[Header], raw: bytes | str) -> None:
    data = raw.encode("utf-8", "replace") if isinstance(raw, str) else raw
    try:
        decode_json_fields(data, cls)
    except (ProtocolError, InvalidRequest):
        pass


@pytest.mark.parametrize("gap", [b"", b" "])
def test_a_json_header_has_so_many_fields(gap: bytes) -> None:
    """A table of 90,000 short fields took 20 ms to read, and more to sign, for a sender nobody knows."""

    def fields(count: int) -> bytes:
        joined = (b"," + gap).join(b'"%d":%b"1"' % (number, gap) for number in range(count))
        return b'{"code":10,"opaque":1,"extFields":{%b}}' % joined

    assert len(decode_command(0, fields(EXT_FIELD_COUNT_MAX), b"").fields) == EXT_FIELD_COUNT_MAX
    for header in (fields(EXT_FIELD_COUNT_MAX + 1), fields(90_000)):
        with pytest.raises(ProtocolError, match="EXT_FIELD_COUNT_MAX"):
            _ = decode_command(0, header, b"").fields
    text = json.dumps({"code": 10, "opaque": 1, "extFields": {"a": json.dumps(["x"] * 5000)}})
    assert len(decode_command(0, text.encode(), b"").fields) == 1  # quotes inside a value are no fields


def test_a_binary_header_has_so_many_fields() -> None:
    """90,000 short entries took 44 ms to read, for a sender nobody knows."""

    def header(count: int) -> bytes:
        run = encode_run({str(number): "1" for number in range(count)})
        return struct.pack(">hBhiiii", 10, 0, 0, 1, 0, 0, len(run)) + run

    assert len(decode_command(BINARY, header(EXT_FIELD_COUNT_MAX), b"").fields) == EXT_FIELD_COUNT_MAX
    with pytest.raises(ProtocolError, match="EXT_FIELD_COUNT_MAX"):
        _ = decode_command(BINARY, header(EXT_FIELD_COUNT_MAX + 1), b"").fields
