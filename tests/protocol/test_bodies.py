"""Bodies: Java's own JSON, byte for byte where it is known, and everything near it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies import body as body_module
from kerolox.protocol.bodies.access import Acl, AclEntry, AclPolicy, User
from kerolox.protocol.bodies.body import Body, MessageQueue, decode_list, encode_list
from kerolox.protocol.bodies.clients import (
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumeResult,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerTable,
)
from kerolox.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectedMaster,
    EpochRanges,
    SyncStateSet,
    decode_broker_names,
)
from kerolox.protocol.bodies.groups import (
    CustomizedRetry,
    GroupConfig,
    GroupConfigList,
    GroupConfigTable,
    GroupForbidden,
    GroupRetryPolicy,
    RequestModeTable,
    RetryPolicyType,
    SetRequestMode,
)
from kerolox.protocol.bodies.heartbeat import (
    CheckClient,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from kerolox.protocol.bodies.members import ConsumerIds, GroupList, LockAnswer, LockRequest
from kerolox.protocol.bodies.offsets import (
    ConsumerOffsetTable,
    ConsumerStatus,
    CorrectionOffsets,
    DelayOffsetTable,
    ResetOffsets,
)
from kerolox.protocol.bodies.pop import (
    ACK_OFFSETS_MAX,
    AssignmentAnswer,
    BatchAck,
    BatchAckRequest,
    QueryAssignment,
    bits_of,
)
from kerolox.protocol.bodies.queue_mapping import QueueMapping, QueueMappingDetail
from kerolox.protocol.bodies.registration import Registration
from kerolox.protocol.bodies.routes import (
    BrokerData,
    BrokerMemberGroupAnswer,
    ClusterInfo,
    KVConfig,
    KVTable,
    QueueData,
    TopicList,
    TopicRoute,
)
from kerolox.protocol.bodies.stats import (
    BrokerStats,
    ConsumeQueueView,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    HaStatus,
    TimerMetrics,
    TopicStats,
)
from kerolox.protocol.bodies.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicConfigWithMapping,
)
from kerolox.protocol.json_dialect import loads

VERSION_JSON = '{"counter":0,"stateVersion":0,"timestamp":1794766976625}'
TOPIC_JSON = (
    '{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
    '"topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":8}'
)
TOPICS_JSON = (
    f'{{"dataVersion":{VERSION_JSON},"mappingDataVersion":{VERSION_JSON},"topicConfigTable":{{"TopicTest":'
    f'{TOPIC_JSON}}},"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{}}}}'
)
GROUP_JSON = (
    '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
    '"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"CG",'
    '"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,'
    '"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
)
QUEUE_JSON = '{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}'
SUBSCRIPTION_JSON = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    '"subVersion":1794766976681,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}'
)
HEARTBEAT_JSON = (
    '{"clientID":"10.0.0.9@1234#5678","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    '"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":['
    '{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1794766976692,'
    f'"tagsSet":[],"topic":"%RETRY%CG"}},{SUBSCRIPTION_JSON}],"unitMode":false}}],'
    '"heartbeatFingerprint":-1145941616,"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}'
)
PROCESS_QUEUE_JSON = (
    '{"cachedMsgCount":0,"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,'
    '"commitOffset":0,"droped":false,"lastConsumeTimestamp":0,"lastLockTimestamp":0,"lastPullTimestamp":0,'
    '"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,'
    '"tryUnlockTimes":0}'
)
CONSUME_STATS_JSON = (
    f'{{"consumeTps":0.0,"offsetTable":{{{QUEUE_JSON}:'
    '{"brokerOffset":10,"consumerOffset":5,"lastTimestamp":0,"pullOffset":0}}}'
)
STATS_ITEM_JSON = '{"avgpt":0.0,"sum":0,"tps":0.0}'
BROKER_JSON = '{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"'

# As a Java 5.3.3 peer writes them. Where integer keys are bare, they are written bare again on request.
JAVA: list[tuple[type[Body], str]] = [
    (
        TopicRoute,
        '{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a",'
        '"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":['
        '{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
    ),
    (
        ClusterInfo,
        f'{{"brokerAddrTable":{{"broker-a":{BROKER_JSON},"enableActingMaster":false}}}},'
        '"clusterAddrTable":{"DefaultCluster":["broker-a"]}}',
    ),
    (TopicList, '{"brokerAddr":"10.0.0.1:10911","topicList":["A","B"]}'),
    (TopicList, '{"topicList":[]}'),
    (KVTable, '{"table":{"k":"v"}}'),
    (BrokerMemberGroupAnswer, f'{{"brokerMemberGroup":{BROKER_JSON}}}}}'),
    (SyncStateSet, '{"syncStateSet":[1,2],"syncStateSetEpoch":3}'),
    (SyncStateSet, '{"syncStateSet":[],"syncStateSetEpoch":0}'),
    (
        ElectedMaster,
        '{"brokerMemberGroup":{"brokerAddrs":{1:"10.0.0.1:10911",2:"10.0.0.2:10911"},"brokerName":"broker-a",'
        '"cluster":"DefaultCluster"},"syncStateSet":[1,2]}',
    ),
    (ElectedMaster, '{"syncStateSet":[1,2]}'),
    (
        BrokerReplicasInfo,
        '{"replicasInfoTable":{"broker-a":{"inSyncReplicas":[{"alive":true,"brokerAddress":"10.0.0.1:10911",'
        '"brokerId":1,"brokerName":"broker-a"}],"masterAddress":"10.0.0.1:10911","masterBrokerId":1,'
        '"masterEpoch":1,"notInSyncReplicas":[{"alive":false,"brokerAddress":"10.0.0.2:10911","brokerId":2,'
        '"brokerName":"broker-a"}],"syncStateSetEpoch":2}}}',
    ),
    (
        EpochRanges,
        '{"brokerId":0,"brokerName":"broker-a","clusterName":"DefaultCluster","epochList":[{"endOffset":100,'
        '"epoch":1,"startOffset":0},{"endOffset":9223372036854775807,"epoch":2,"startOffset":100}],'
        '"maxOffset":250}',
    ),
    (KVConfig, '{"configTable":{"ORDER_TOPIC_CONFIG":{"t":"broker-a:4"}}}'),
    (DataVersion, VERSION_JSON),
    (TopicConfig, TOPIC_JSON),
    (TopicConfigWithMapping, TOPIC_JSON),
    (TopicConfigTable, TOPICS_JSON),
    (TopicConfigList, f'{{"topicConfigList":[{TOPIC_JSON}]}}'),
    (Registration, f'{{"filterServerList":[],"topicConfigSerializeWrapper":{TOPICS_JSON}}}'),
    (HeartbeatData, HEARTBEAT_JSON),
    (
        CheckClient,
        '{"clientId":"cid","group":"CG","subscriptionData":{"classFilterMode":false,"codeSet":[],'
        '"expressionType":"SQL92","subString":"a > 1","subVersion":1,"tagsSet":[],"topic":"TopicTest"}}',
    ),
    (
        LockRequest,
        f'{{"clientId":"cid","consumerGroup":"CG","mqSet":[{QUEUE_JSON}],"onlyThisBroker":false}}',
    ),
    (LockAnswer, f'{{"lockOKMQSet":[{QUEUE_JSON}]}}'),
    (ConsumerIds, '{"consumerIdList":["10.0.0.9@1#2"]}'),
    (GroupList, '{"groupList":["CG"]}'),
    (
        ConsumerOffsetTable,
        f'{{"dataVersion":{VERSION_JSON},"groupTopicMap":{{"CG":["TopicTest"]}},'
        '"offsetTable":{"TopicTest@CG":{0:5,1:7}}}',
    ),
    (DelayOffsetTable, f'{{"dataVersion":{VERSION_JSON},"offsetTable":{{1:12,3:40}}}}'),
    (CorrectionOffsets, '{"correctionOffsets":{0:4}}'),
    (GroupConfig, GROUP_JSON),
    (
        GroupConfigTable,
        f'{{"dataVersion":{VERSION_JSON},"forbiddenTable":{{}},"subscriptionGroupTable":{{"CG":{GROUP_JSON}}}}}',
    ),
    (GroupConfigList, f'{{"groupConfigList":[{GROUP_JSON}]}}'),
    (GroupForbidden, '{"group":"CG","readable":true,"topic":"TopicTest"}'),
    (
        QueueMappingDetail,
        '{"bname":"broker-a","currIdMap":{},"dirty":false,"epoch":1,"hostedQueues":{0:[{"bname":"broker-a",'
        '"endOffset":-1,"gen":0,"logicOffset":0,"queueId":0,"startOffset":0,"timeOfEnd":-1,'
        '"timeOfStart":-1}]},"scope":"__global__","topic":"TopicTest","totalQueues":8}',
    ),
    (ConsumeStats, CONSUME_STATS_JSON),
    (
        TopicStats,
        f'{{"offsetTable":{{{QUEUE_JSON}:{{"lastUpdateTimestamp":0,"maxOffset":9,"minOffset":0}}}},'
        '"topicPutTps":0.0}',
    ),
    (
        ConsumeStatsList,
        f'{{"brokerAddr":"x","consumeStatsList":[{{"CG":[{CONSUME_STATS_JSON}]}}],"totalDiff":0,'
        '"totalInflightDiff":0}',
    ),
    (
        BrokerStats,
        f'{{"statsDay":{STATS_ITEM_JSON},"statsHour":{STATS_ITEM_JSON},"statsMinute":{STATS_ITEM_JSON}}}',
    ),
    (
        ConsumeTimeSpans,
        '{"consumeTimeSpanSet":[{"consumeTimeStamp":0,"delayTime":0,"maxTimeStamp":0,'
        f'"messageQueue":{QUEUE_JSON},"minTimeStamp":0}}]}}',
    ),
    (
        ConsumeQueueView,
        '{"filterData":"..","maxQueueIndex":9,"minQueueIndex":0,"queueData":[{"eval":false,"physicOffset":0,'
        f'"physicSize":180,"tagsCode":2598919}}],"subscriptionData":{SUBSCRIPTION_JSON}}}',
    ),
    (
        HaStatus,
        '{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterFlushOffset":0,'
        '"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":[{"addr":"a:1","diff":0,"inSync":true,'
        '"slaveAckOffset":5,"transferFromWhere":0,"transferredByteInSecond":9}],"inSyncSlaveNums":1,'
        '"master":true,"masterCommitLogMaxOffset":0}',
    ),
    (TimerMetrics, f'{{"dataVersion":{VERSION_JSON},"timingCount":{{"t":{{"count":1,"timeStamp":2}}}}}}'),
    (
        ConsumerConnection,
        '{"connectionSet":[{"clientAddr":"10.0.0.9:5555","clientId":"cid","language":"JAVA","version":479}],'
        '"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY",'
        f'"messageModel":"CLUSTERING","subscriptionTable":{{"TopicTest":{SUBSCRIPTION_JSON}}}}}',
    ),
    (ProducerConnection, '{"connectionSet":[]}'),
    (
        ProducerTable,
        '{"data":{"PG":[{"clientId":"cid","language":"JAVA","lastUpdateTimestamp":1,'
        '"remoteIP":"/10.0.0.9:5555","version":479}]}}',
    ),
    (
        ConsumerRunningInfo,
        f'{{"mqPopTable":{{}},"mqTable":{{{QUEUE_JSON}:{PROCESS_QUEUE_JSON}}},"properties":'
        '{"PROP_CONSUMER_START_TIMESTAMP":"1","PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},"statusTable":'
        '{"TopicTest":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":0.0,"consumeRT":0.0,'
        f'"pullRT":0.0,"pullTPS":0.0}}}},"subscriptionSet":[{SUBSCRIPTION_JSON}],"userConsumerInfo":{{}}}}',
    ),
    (
        ConsumeDirectlyResult,
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":0}',
    ),
    (ConsumerStatus, f'{{"consumerTable":{{}},"messageQueueTable":{{{QUEUE_JSON}:3}}}}'),
    (ConsumerStatus, f'{{"consumerTable":{{"cid":{{{QUEUE_JSON}:3}}}},"messageQueueTable":{{}}}}'),
    (
        BatchAckRequest,
        '{"acks":[{"b":"AwI=","c":"CG","it":60000,"pt":1700000000000,"q":0,"r":"0","rq":3,"so":100,'
        '"t":"TopicTest"}],"brokerName":"broker-a"}',
    ),
    (
        QueryAssignment,
        '{"clientId":"cid","consumerGroup":"CG","messageModel":"CLUSTERING","strategyName":"AVG",'
        '"topic":"TopicTest"}',
    ),
    (
        AssignmentAnswer,
        '{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":-1,'
        '"topic":"TopicTest"},"mode":"POP"}]}',
    ),
    (SetRequestMode, '{"consumerGroup":"CG","mode":"POP","popShareQueueNum":8,"topic":"TopicTest"}'),
    (
        RequestModeTable,
        '{"messageRequestModeMap":{"TopicTest":{"CG":{"consumerGroup":"CG","mode":"POP",'
        '"popShareQueueNum":8,"topic":"TopicTest"}}}}',
    ),
    (ResetOffsets, f'{{"offsetTable":{{{QUEUE_JSON}:123}}}}'),
]


@pytest.mark.parametrize(("cls", "text"), JAVA)
def test_javas_own_bodies_come_out_byte_for_byte(cls: type[Body], text: str) -> None:
    decoded = cls.decode(text.encode())
    bare = '{"0"' not in text
    assert decoded.encode(quote_integer_keys=not bare).decode() == text
    assert loads(decoded.encode()) == loads(text)  # with quoted keys it says the same
    assert cls.decode(decoded.encode()) == decoded


@pytest.mark.parametrize(("cls", "text"), JAVA)
def test_missing_unknown_and_null_members(cls: type[Body], text: str) -> None:
    assert cls.decode("{}") == cls()
    assert cls.decode('{"somethingNew":{"a":[1]}}') == cls()
    nulls = dict.fromkeys(cls.__struct_encode_fields__)
    assert cls.decode(json.dumps(nulls)) == cls()


@pytest.mark.parametrize(("cls", "text"), JAVA)
@pytest.mark.parametrize("bad", ["", "7", "[]", "null", '"x"', "{", "\x00\xff", '{"a":1'])
def test_what_is_no_body_is_a_protocol_error(cls: type[Body], text: str, bad: str) -> None:
    with pytest.raises(ProtocolError):
        cls.decode(bad.encode("latin-1"))
    with pytest.raises(ProtocolError):
        cls.decode(text[: len(text) // 2].encode())


CLASSES = sorted({cls for cls, _ in JAVA}, key=lambda cls: cls.__name__)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_tree_is_read_or_refused(data: st.DataObject) -> None:
    cls = data.draw(st.sampled_from(CLASSES))
    names = st.sampled_from(cls.__struct_encode_fields__)
    tree = data.draw(st.dictionaries(names, ANYTHING, max_size=4))
    try:
        decoded = cls.decode(json.dumps(tree))
    except ProtocolError:
        return
    assert isinstance(decoded, cls)
    again = cls.decode(decoded.encode())  # what is no number came back as its default
    assert cls.decode(again.encode()) == again


# --- other peers, other times ---------------------------------------------------------------------


def test_heartbeat_values() -> None:
    heartbeat = HeartbeatData.decode(HEARTBEAT_JSON)
    assert heartbeat.client_id == "10.0.0.9@1234#5678"
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    retry, tagged = consumer.subscription_data_set
    assert retry.tags_set == frozenset()
    assert tagged.tags_set == {"TagA", "TagB"}
    assert tagged.code_set == {2598919, 2598920}
    assert hash(tagged) == hash(SubscriptionData.decode(SUBSCRIPTION_JSON))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ('"messageModel":"Clustering"', ConsumerData(message_model=MessageModel.CLUSTERING)),
        ('"messageModel":"BroadCasting"', ConsumerData(message_model=MessageModel.BROADCASTING)),
        # C++ clients send the place in the enum
        ('"messageModel":1,"consumeType":1', ConsumerData(
            message_model=MessageModel.CLUSTERING, consume_type=ConsumeType.CONSUME_PASSIVELY)),
        ('"consumeFromWhere":4', ConsumerData(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)),
        ('"consumeType":"CONSUME_BY_PIGEON","groupName":"g"', ConsumerData(group_name="g")),
        ('"consumeType":99,"unitMode":"TRUE"', ConsumerData(unit_mode=True)),
        ('"groupName":5', ConsumerData(group_name="5")),
        ('"subscriptionDataSet":null', ConsumerData()),
        ('"subscriptionDataSet":[null,{"topic":"t","tagsSet":null,"codeSet":null,"expressionType":null,'
         '"subVersion":"7"}]',
         ConsumerData(subscription_data_set=(SubscriptionData(topic="t", sub_version=7),))),
    ],
)  # fmt: skip
def test_heartbeats_of_other_clients(members: str, expected: ConsumerData) -> None:
    text = f'{{"clientID":"c","consumerDataSet":[{{{members}}}],"producerDataSet":[]}}'
    heartbeat = HeartbeatData.decode(text)
    assert heartbeat == HeartbeatData(client_id="c", consumer_data_set=(expected,))


def test_route_of_a_4x_name_server_and_route_for_a_go_client() -> None:
    text = (
        '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a",'
        '"cluster":"c"}],"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,'
        '"topicSynFlag":0,"writeQueueNums":4}],"orderTopicConf":"a:4"}'
    )
    route = TopicRoute.decode(text)
    assert route == TopicRoute(
        broker_datas=(
            BrokerData(broker_addrs={0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}, broker_name="a", cluster="c"),
        ),
        queue_datas=(QueueData(broker_name="a", perm=6, read_queue_nums=4, write_queue_nums=4),),
        order_topic_conf="a:4",
    )
    # Go splits this object by commas and colons: no spaces, no nulls.
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}' in route.encode()
    assert b'"brokerAddrs":{0:"10.0.0.1:10911",1:' in route.encode(quote_integer_keys=False)
    assert b"null" not in route.encode()
    json.loads(route.encode(ascii_only=True))


def test_route_with_a_static_topic() -> None:
    text = (
        '{"topicQueueMappingByBroker":{"a":{"bname":"a","currIdMap":{0:0,1:3},"dirty":false,"epoch":9,'
        '"scope":"__global__","topic":"t","totalQueues":8}}}'
    )
    mapping = TopicRoute.decode(text).topic_queue_mapping_by_broker
    assert mapping == {
        "a": QueueMapping(bname="a", curr_id_map={0: 0, 1: 3}, epoch=9, topic="t", total_queues=8)
    }


def test_object_keys_may_be_quoted() -> None:
    key = json.dumps(QUEUE_JSON)
    stats = ConsumeStats.decode(f'{{"offsetTable":{{{key}:{{"brokerOffset":10}}}}}}')
    assert list(stats.offset_table) == [MessageQueue("TopicTest", "broker-a", 0)]
    with pytest.raises(ProtocolError):
        ConsumeStats.decode('{"offsetTable":{"{nonsense":{"brokerOffset":10}}}')
    with pytest.raises(ProtocolError):
        ConsumeStats.decode('{"offsetTable":{"word":{"brokerOffset":10}}}')


def test_queues_sort_as_java_sorts_them() -> None:
    queues = [MessageQueue("b", "a", 0), MessageQueue("a", "b", 2), MessageQueue("a", "a", 10)]
    assert sorted(queues) == [queues[2], queues[1], queues[0]]


def test_4x_answers_lack_members() -> None:
    assert DataVersion.decode('{"counter":3,"timestamp":5}') == DataVersion(counter=3, timestamp=5)
    assert ConsumerOffsetTable.decode('{"offsetTable":{"t@g":{"0":5}}}') == ConsumerOffsetTable(
        offset_table={"t@g": {0: 5}}
    )
    assert GroupConfig.decode('{"groupName":"g","retryMaxTimes":3}') == GroupConfig(
        group_name="g", retry_max_times=3
    )


def test_retry_policies() -> None:
    text = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}}'
    policy = GroupRetryPolicy.decode(text)
    assert policy.type is RetryPolicyType.EXPONENTIAL
    assert policy.exponential_retry_policy is not None
    assert policy.exponential_retry_policy.pause_ms_max == 7_200_000
    assert loads(policy.encode()) == loads(text)
    assert len(CustomizedRetry().pauses_ms) == 18
    assert CustomizedRetry(pauses_ms=(1, 2)).encode() == b'{"next":[1,2]}'


def test_order_of_data_versions() -> None:
    old = DataVersion(counter=5, timestamp=100)
    assert DataVersion(counter=6, timestamp=50).newer_than(old)
    assert DataVersion(counter=5, timestamp=101).newer_than(old)
    assert DataVersion(counter=0, timestamp=0, state_version=1).newer_than(old)
    assert not old.newer_than(old)
    assert old == DataVersion(counter=5, timestamp=100) != DataVersion(counter=5, timestamp=101)
    assert old.next(200) == DataVersion(counter=6, timestamp=200)
    assert old.next(200, state_version=3) == DataVersion(counter=6, timestamp=200, state_version=3)


def test_reset_offsets_in_both_forms() -> None:
    reset = ResetOffsets(offset_table={MessageQueue("TopicTest", "broker-a", 0): 5})
    listed = b'{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":0,"topic":"TopicTest"}]}'
    assert reset.encode_for_cpp() == listed
    assert ResetOffsets.decode(listed) == reset
    with pytest.raises(ProtocolError):
        ResetOffsets.decode('{"offsetTable":[{"offset":"many"}]}')


def test_batch_ack_bits() -> None:
    ack = BatchAck(bits=b"\x03\x02", start_offset=100)
    assert ack.offsets == [100, 101, 109]
    assert bits_of([9, 0, 1]) == b"\x03\x02"
    assert bits_of([]) == b""
    with pytest.raises(ProtocolError, match="ACK_OFFSETS_MAX"):
        _ = BatchAck(bits=bytes(ACK_OFFSETS_MAX // 8 + 1)).offsets


def test_batch_ack_with_long_names_and_byte_values() -> None:
    text = (
        '{"brokerName":"a","acks":[{"consumerGroup":"CG","topic":"T","retry":"1","startOffset":7,"queueId":2,'
        '"reviveQueueId":3,"popTime":4,"invisibleTime":5,"bitSet":[3,-128]}]}'
    )
    (ack,) = BatchAckRequest.decode(text).acks
    assert ack == BatchAck(
        bits=b"\x03\x80",
        consumer_group="CG",
        invisible_time=5,
        pop_time=4,
        queue_id=2,
        retry="1",
        revive_queue_id=3,
        start_offset=7,
        topic="T",
    )


def test_consume_result_and_remark() -> None:
    result = ConsumeDirectlyResult(consume_result=ConsumeResult.CR_THROW_EXCEPTION, remark="boom")
    assert ConsumeDirectlyResult.decode(result.encode()) == result


def test_lists_of_users_and_rules() -> None:
    users = [User(username="a", user_type="Super"), User(username="b", password="x")]
    assert encode_list(users) == b'[{"userType":"Super","username":"a"},{"password":"x","username":"b"}]'
    assert decode_list(encode_list(users), User) == users
    with pytest.raises(ProtocolError):
        decode_list(b'{"username":"a"}', User)
    entry = AclEntry(resource="Topic:*", actions=("Pub",), source_ips=("10.0.0.1",), decision="Allow")
    acl = Acl(subject="User:a", policies=(AclPolicy(policy_type="Custom", entries=(entry,)),))
    assert Acl.decode(acl.encode()) == acl


def test_the_fast_way_is_taken_for_plain_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_needed(*_: Any) -> Any:
        raise AssertionError("fitted a body that needed no fitting")

    monkeypatch.setattr(body_module, "_fit", not_needed)
    assert HeartbeatData.decode(HEARTBEAT_JSON).client_id


def test_a_large_body_must_fit_as_it_is() -> None:
    """Fitting costs a step of Python for each value: not for as many as a stranger likes."""
    misfit = b'{"topicList":[' + b"1," * 200_000 + b"true]}"
    with pytest.raises(ProtocolError, match="and more than 200000 values"):
        TopicList.decode(misfit)
    assert len(TopicList.decode(b'{"topicList":[' + b"1," * 1000 + b'true,"x"]}').topic_list) == 1002
    assert len(TopicList.decode(b'{"topicList":[' + b'"t",' * 300_000 + b'"x"]}').topic_list) == 300_001


def test_broker_names_are_an_array() -> None:
    assert decode_broker_names(b'["broker-a","broker-b"]') == ("broker-a", "broker-b")
    for wrong in (b"{}", b"[[1]]", b"["):
        with pytest.raises(ProtocolError):
            decode_broker_names(wrong)


def test_an_elected_master_is_read_with_bare_ids_and_with_quoted_ones() -> None:
    group = b'{"brokerAddrs":{1:"a:1"},"brokerName":"b","cluster":"c"}'
    text = b'{"brokerMemberGroup":%b,"syncStateSet":[1]}' % group
    quoted = text.replace(b"{1:", b'{"1":')
    assert ElectedMaster.decode(quoted) == ElectedMaster.decode(text)
    assert ElectedMaster.decode(text).encode() == quoted


@pytest.mark.parametrize(
    "route",
    [
        {"queueDatas": [{"brokerName": "a", "perm": 6, "readQueueNums": 2**31 - 1, "writeQueueNums": 1}]},
        {"queueDatas": [{"brokerName": f"b{n}", "writeQueueNums": 65_536} for n in range(5)]},
        {"orderTopicConf": "a:4;b:2147483647"},
        {"orderTopicConf": "a:" + "9" * 5000},
    ],
)
def test_a_route_has_so_many_queues(route: dict[str, Any]) -> None:
    """Clients make an object for each queue: 2**31 of them cost a client 2 GB and its loop."""
    with pytest.raises(ProtocolError, match="ROUTE_QUEUES_MAX"):
        TopicRoute.decode(json.dumps(route))
    large = {"queueDatas": [{"brokerName": f"b{n}", "writeQueueNums": 65_536} for n in range(4)]}
    assert len(TopicRoute.decode(json.dumps(large)).queue_datas) == 4
