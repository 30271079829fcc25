"""The name server over real sockets, asked in both header encodings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme

from kerolox.errors import KeroloxError
from kerolox.front.lanes import Lane
from kerolox.front.requests import Request
from kerolox.nameserver.brokers import MinIdNotice
from kerolox.nameserver.changes import SLICE
from kerolox.nameserver.kv import ORDER_TOPIC_CONFIG
from kerolox.nameserver.server import NameServer
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.listener import ListenFailed
from kerolox.net.peer import Peer
from kerolox.net.server import Server
from kerolox.net.tls import ClientAuth, ClientTls, ServerTls, TlsMode
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.bodies.routes import (
    BrokerMemberGroupAnswer,
    ClusterInfo,
    KVTable,
    QueueData,
    TopicList,
    TopicRoute,
)
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.frame import FrameSplitter
from kerolox.protocol.header import Header
from kerolox.protocol.headers import kv, registration, route
from kerolox.testing.clock import ManualClock
from kerolox.testing.nameserver import running_nameserver

from .conftest import A, B, register, table, until


async def ask(
    dialer: Dialer,
    nameserver: NameServer,
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    **more: Any,
) -> Command:
    return await dialer.call(nameserver.address, code, header, body, **more)


async def route_of(dialer: Dialer, nameserver: NameServer, topic: str, **header: Any) -> Command:
    return await ask(
        dialer, nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, route.RouteRequest(topic=topic, **header)
    )


def server_peers(nameserver: NameServer) -> set[Peer]:
    assert nameserver._server is not None
    return nameserver._server.peers


# --- brokers and routes -----------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registered_topic_has_a_route(
    nameserver: NameServer, dialer: Dialer, compressed: bool
) -> None:
    answer = await register(dialer, nameserver, compressed=compressed)
    assert (answer.code, answer.body) == (0, b"")
    answer = await route_of(dialer, nameserver, "t1")
    assert answer.code == 0
    assert json.loads(answer.body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": A},
                "brokerName": "broker-a",
                "cluster": "c1",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }


async def test_an_unknown_topic_is_answered_17(nameserver: NameServer, dialer: Dialer) -> None:
    answer = await route_of(dialer, nameserver, "nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "No topic route info in name server for the topic: nowhere" in (answer.remark or "")
    assert answer.body == b""


@pytest.mark.parametrize(
    ("version", "accept", "bare"), [(399, "", True), (401, "", False), (0, "true", False)]
)
async def test_old_clients_get_bare_integer_keys(
    nameserver: NameServer, version: int, accept: str, bare: bool
) -> None:
    async with Dialer() as dialer:
        await register(dialer, nameserver)
        reader, writer = await asyncio.open_connection("127.0.0.1", nameserver.port)
        fields = {"topic": "t1"} | ({"acceptStandardJsonOnly": accept} if accept else {})
        for opaque in (1, 2):  # the second from what was kept
            asked = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=opaque, fields=fields, version=version)
            writer.write(asked.encode())
            splitter = FrameSplitter()
            frames: list[Any] = []
            while not frames:
                frames = splitter.feed(await reader.read(65536))
            assert (b'{0:"' in frames[0][2]) is bare
            assert (b'{"0":"' in frames[0][2]) is not bare
        writer.close()
        await writer.wait_closed()
    assert nameserver.routes.encoded.built == 1


async def test_a_slave_learns_its_master_and_brokers_learn_ordered_topics(
    nameserver: NameServer, dialer: Dialer
) -> None:
    await register(dialer, nameserver)
    await ask(
        dialer,
        nameserver,
        RequestCode.PUT_KV_CONFIG,
        kv.PutKvRequest(namespace=ORDER_TOPIC_CONFIG, key="t1", value="broker-a:4"),
    )
    answer = await register(dialer, nameserver, id=1, address=B)
    header = answer.header(registration.RegisterBrokerAnswer)
    assert (header.master_addr, header.ha_server_addr) == (A, "10.0.0.1:10912")
    assert KVTable.decode(answer.body).table == {"t1": "broker-a:4"}


async def test_refused_registrations(nameserver: NameServer, dialer: Dialer) -> None:
    answer = await register(dialer, nameserver, "only")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "register broker failed")
    answer = await register(dialer, nameserver, body_crc32=1)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    answer = await ask(
        dialer,
        nameserver,
        RequestCode.REGISTER_BROKER,
        registration.RegisterBrokerRequest(
            broker_name="b", broker_addr=A, cluster_name="c1", broker_id=0, ha_server_addr="x"
        ),
        b"{nonsense",
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert not nameserver.routes.groups
    assert (await register(dialer, nameserver)).code == 0  # the connection goes on


async def test_a_broker_without_body_is_known_but_has_no_topics(
    nameserver: NameServer, dialer: Dialer
) -> None:
    header = registration.RegisterBrokerRequest(
        broker_name="b", broker_addr=A, cluster_name="c1", broker_id=0, ha_server_addr="x"
    )
    assert (await ask(dialer, nameserver, RequestCode.REGISTER_BROKER, header)).code == 0
    info = ClusterInfo.decode((await ask(dialer, nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)).body)
    assert info.broker_addr_table["b"].broker_addrs == {0: A}
    assert info.cluster_addr_table == {"c1": ("b",)}


async def test_a_large_registration_and_its_end_leave_others_served(
    nameserver: NameServer, dialer: Dialer
) -> None:
    """Counted in turns of the loop: what is done in one turn would let nobody in between."""
    await register(dialer, nameserver, "small", "small2", name="broker-s", address=B)
    names = [f"topic-{number}" for number in range(80 * SLICE)]
    async with Dialer() as large:
        registering = asyncio.ensure_future(register(large, nameserver, *names))
        served = 0
        while len(nameserver.routes.topics) < len(names):
            assert not registering.done() or (await registering).code == 0
            answer = await route_of(dialer, nameserver, "small")
            assert answer.code == 0
            served += 0 < len(nameserver.routes.topics) - 2 < len(names)
        assert (await registering).code == 0
        assert served > 3
    served = 0
    while len(nameserver.routes.topics) > 2:
        assert (await route_of(dialer, nameserver, "small")).code == 0
        served += len(nameserver.routes.topics) < len(names)
    assert served > 3


async def test_a_broker_whose_connection_ends_while_it_registers_is_forgotten(
    nameserver: NameServer, dialer: Dialer
) -> None:
    async with nameserver.changes.turn:
        async with Dialer() as going:
            registering = asyncio.ensure_future(register(going, nameserver))
            await until(lambda: any(peer.data for peer in server_peers(nameserver)))
        await until(lambda: not any(peer.data for peer in server_peers(nameserver)))
        with contextlib.suppress(KeroloxError):
            await registering
    await until(lambda: not nameserver.changes.turn.locked())
    assert nameserver.routes.alive == {}
    assert (await route_of(dialer, nameserver, "t1")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_unregistering(nameserver: NameServer, dialer: Dialer) -> None:
    await register(dialer, nameserver)
    header = registration.UnregisterBrokerRequest(
        broker_name="broker-a", broker_addr=A, cluster_name="c1", broker_id=0
    )
    assert (await ask(dialer, nameserver, RequestCode.UNREGISTER_BROKER, header)).code == 0
    assert (await route_of(dialer, nameserver, "t1")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_the_data_version_short_cut(nameserver: NameServer, dialer: Dialer) -> None:
    header = registration.DataVersionRequest(
        broker_name="broker-a", broker_addr=A, cluster_name="c1", broker_id=0
    )

    async def query(counter: int) -> tuple[bool, bytes]:
        body = table(counter=counter).data_version.encode()
        answer = await ask(dialer, nameserver, RequestCode.QUERY_DATA_VERSION, header, body)
        assert answer.code == 0
        return answer.header(registration.DataVersionAnswer).changed, answer.body

    assert await query(1) == (True, b"")
    await register(dialer, nameserver, counter=1)
    changed, body = await query(1)
    assert not changed
    assert DataVersion.decode(body) == DataVersion(counter=1, timestamp=1000)
    assert (await query(2))[0]


async def test_write_permission(nameserver: NameServer, dialer: Dialer) -> None:
    await register(dialer, nameserver)

    async def perm() -> int:
        body = (await route_of(dialer, nameserver, "t1")).body
        return TopicRoute.decode(body).queue_datas[0].perm

    answer = await ask(
        dialer,
        nameserver,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        registration.WipeWritePermRequest(broker_name="broker-a"),
    )
    assert answer.header(registration.WipeWritePermAnswer).wipe_topic_count == 2
    assert await perm() == 4
    answer = await ask(
        dialer,
        nameserver,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        registration.AddWritePermRequest(broker_name="broker-a"),
    )
    assert answer.header(registration.AddWritePermAnswer).add_topic_count == 2
    assert await perm() == 6


async def test_topics_in_lists_added_and_deleted(nameserver: NameServer, dialer: Dialer) -> None:
    await register(dialer, nameserver)

    async def topics(code: RequestCode, header: Header | None = None) -> TopicList:
        answer = await ask(dialer, nameserver, code, header)
        assert answer.code == 0
        return TopicList.decode(answer.body)

    everything = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    assert (await topics(everything)).topic_list == ("t1", "t2")
    queues = TopicRoute(queue_datas=(QueueData(broker_name="broker-a", perm=6, topic_sys_flag=3),))
    await ask(
        dialer,
        nameserver,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        route.RegisterTopicRequest(topic="t3"),
        queues.encode(),
    )
    assert (await topics(everything)).topic_list == ("t1", "t2", "t3")
    await ask(
        dialer,
        nameserver,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        route.DeleteTopicAtNameServerRequest(topic="t1", cluster_name="c1"),
    )
    await ask(
        dialer,
        nameserver,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        route.DeleteTopicAtNameServerRequest(topic="t2"),
    )
    cluster = await topics(RequestCode.GET_TOPICS_BY_CLUSTER, route.ClusterTopicsRequest(cluster="c1"))
    assert cluster.topic_list == ("t3",)
    assert (await topics(RequestCode.GET_UNIT_TOPIC_LIST)).topic_list == ("t3",)
    assert (await topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)).topic_list == ("t3",)
    assert (await topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)).topic_list == ()
    system = await topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert (system.topic_list, system.broker_addr) == (("broker-a", "c1"), A)


async def test_a_long_list_is_written_while_others_are_served(
    nameserver: NameServer, dialer: Dialer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is not written before another client was answered: on the loop that would wait for ever."""
    others_were_served = threading.Event()
    encode = TopicList.encode

    def slowly(self: TopicList) -> bytes:
        assert others_were_served.wait(60)
        return encode(self)

    await register(dialer, nameserver)
    monkeypatch.setattr(TopicList, "encode", slowly)
    listing = asyncio.ensure_future(
        ask(dialer, nameserver, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout_s=60)
    )
    assert (await route_of(dialer, nameserver, "t1")).code == 0
    assert not listing.done()
    others_were_served.set()
    assert TopicList.decode((await listing).body).topic_list == ("t1", "t2")


async def test_lists_can_be_disabled(dialer: Dialer) -> None:
    async with running_nameserver(enable_all_topic_list=False, enable_topic_list=False) as nameserver:
        for code, header in (
            (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
            (RequestCode.GET_TOPICS_BY_CLUSTER, route.ClusterTopicsRequest(cluster="c1")),
            (RequestCode.GET_UNIT_TOPIC_LIST, None),
            (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, None),
            (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None),
        ):
            answer = await ask(dialer, nameserver, code, header)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")


async def test_members_of_a_group(nameserver: NameServer, dialer: Dialer) -> None:
    await register(dialer, nameserver)
    await register(dialer, nameserver, id=1, address=B)
    header = registration.BrokerMemberGroupRequest(cluster_name="c1", broker_name="broker-a")
    answer = await ask(dialer, nameserver, RequestCode.GET_BROKER_MEMBER_GROUP, header)
    group = BrokerMemberGroupAnswer.decode(answer.body).broker_member_group
    assert group is not None
    assert group.broker_addrs == {0: A, 1: B}


async def test_the_zone_filter_over_the_wire(nameserver: NameServer, dialer: Dialer) -> None:
    await register(dialer, nameserver, fields={"__ZONE_NAME": "east"})
    await register(dialer, nameserver, name="broker-b", address=B, fields={"__ZONE_NAME": "west"})

    async def names(**header: Any) -> list[str]:
        body = (await route_of(dialer, nameserver, "t1", **header)).body
        return sorted(data.broker_name for data in TopicRoute.decode(body).broker_datas)

    assert await names(zone_mode=True, zone_name="west") == ["broker-b"]
    assert await names(zone_mode=False, zone_name="west") == ["broker-a", "broker-b"]
    assert await names(zone_mode=True) == ["broker-a", "broker-b"]


async def test_an_unknown_code_is_answered_3(nameserver: NameServer, dialer: Dialer) -> None:
    answer = await ask(dialer, nameserver, RequestCode.SEND_MESSAGE)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- brokers that go --------------------------------------------------------------------------


async def test_a_closed_connection_removes_its_broker(
    nameserver: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kerolox.nameserver")
    async with Dialer() as client, Dialer() as broker:
        await register(broker, nameserver)
        assert (await route_of(client, nameserver, "t1")).code == 0
        await broker.close()
        await until(lambda: not nameserver.routes.groups)
        assert (await route_of(client, nameserver, "t1")).code == ResponseCode.TOPIC_NOT_EXIST
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["broker_registered", "broker_forgotten"]


async def test_a_quiet_broker_is_forgotten_and_its_connection_closed() -> None:
    clock = ManualClock()
    idle = 100_000  # idle connections are another matter
    async with (
        running_nameserver(clock=clock, server_channel_max_idle_time_seconds=idle) as nameserver,
        Dialer() as broker,
        Dialer() as short,
    ):
        await register(broker, nameserver)
        await register(short, nameserver, name="broker-b", address=B, heartbeat_timeout_millis=10_000)
        peers = len(nameserver._server.peers)  # type: ignore[union-attr]
        await clock.advance(20)
        await until(lambda: len(nameserver._server.peers) == peers - 1)  # type: ignore[union-attr]
        assert set(nameserver.routes.groups) == {"broker-a"}
        for _ in range(3):
            await clock.advance(100)
            header = registration.BrokerHeartbeatRequest(
                cluster_name="c1", broker_addr=A, broker_name="broker-a"
            )
            assert (await ask(broker, nameserver, RequestCode.BROKER_HEARTBEAT, header)).code == 0
        await clock.advance(119)
        assert set(nameserver.routes.groups) == {"broker-a"}
        await clock.advance(10)
        assert not nameserver.routes.groups


async def test_a_leader_that_goes_quiet_is_acted_for_until_it_is_back() -> None:
    clock = ManualClock()
    options = {"support_acting_master": True, "server_channel_max_idle_time_seconds": 100_000}
    member_topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    async with (
        running_nameserver(clock=clock, **options) as nameserver,
        Dialer() as leader,
        Dialer() as follower,
    ):
        told = {"enable_acting_master": True, "heartbeat_timeout_millis": 10_000}
        topics = ("t1", member_topic)

        async def shown(topic: str) -> tuple[dict[int, str], int]:
            route = TopicRoute.decode((await route_of(follower, nameserver, topic)).body)
            return route.broker_datas[0].broker_addrs, route.queue_datas[0].perm

        await register(leader, nameserver, *topics, **told)
        await register(follower, nameserver, *topics, id=1, address=B, **told)
        alive = registration.BrokerHeartbeatRequest(cluster_name="c1", broker_addr=B, broker_name="broker-a")
        for _ in range(4):
            assert await shown("t1") == ({0: A, 1: B}, 6)
            await clock.advance(2.5)
            assert (await ask(follower, nameserver, RequestCode.BROKER_HEARTBEAT, alive)).code == 0
        await clock.advance(8)
        assert await shown("t1") == ({0: B}, 4)
        assert await shown(member_topic) == ({1: B}, 4)
        group = registration.BrokerMemberGroupRequest(cluster_name="c1", broker_name="broker-a")
        answer = await ask(follower, nameserver, RequestCode.GET_BROKER_MEMBER_GROUP, group)
        members = BrokerMemberGroupAnswer.decode(answer.body).broker_member_group
        assert members is not None
        assert members.broker_addrs == {1: B}
        await register(leader, nameserver, *topics, **told)
        assert await shown("t1") == ({0: A, 1: B}, 6)


async def test_an_idle_connection_is_closed_and_its_broker_with_it() -> None:
    clock = ManualClock()
    async with running_nameserver(clock=clock) as nameserver, Dialer() as broker:
        await register(broker, nameserver, heartbeat_timeout_millis=10_000_000)
        await clock.advance(125)
        await until(lambda: not nameserver.routes.groups)


async def test_no_routes_in_the_first_seconds_when_told_to_wait(dialer: Dialer) -> None:
    clock = ManualClock()
    async with running_nameserver(clock=clock, need_wait_for_service=True) as nameserver:
        await register(dialer, nameserver)
        await clock.advance(44)
        answer = await route_of(dialer, nameserver, "t1")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
        await clock.advance(1)
        assert (await route_of(dialer, nameserver, "t1")).code == 0


async def test_nothing_is_said_to_be_missing_before_the_awaited_brokers_have_registered() -> None:
    asked = (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    async with running_nameserver(brokers_awaited=1) as nameserver, Dialer() as client, Dialer() as broker:
        for answer in (
            await route_of(client, nameserver, "t1"),
            *[await client.call(nameserver.address, code) for code in asked],
        ):
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
        await register(broker, nameserver)
        assert (await route_of(client, nameserver, "t1")).code == 0
        assert [(await client.call(nameserver.address, code)).code for code in asked] == [0, 0]
        await broker.close()  # waited for once: now it is away, and that is told
        await until(lambda: not nameserver.routes.groups)
        assert (await route_of(client, nameserver, "t1")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_brokers_are_told_of_a_new_lowest_id() -> None:
    told: list[registration.MinBrokerIdChanged] = []

    def take(request: Request[registration.MinBrokerIdChanged]) -> None:
        told.append(request.header)

    handlers = RemotingHandlers()
    code = RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
    handlers.add(code, take, registration.MinBrokerIdChanged, Lane("default"))
    async with (
        Server(handlers, host="127.0.0.1") as slave,
        running_nameserver(notify_min_broker_id_changed=True) as nameserver,
        Dialer() as slave_side,
        Dialer() as master_side,
    ):
        await register(slave_side, nameserver, id=1, address=slave.address, enable_acting_master=True)
        await register(master_side, nameserver, id=0, address=A, enable_acting_master=True)
        await until(lambda: told)
        assert (told[0].min_broker_id, told[0].min_broker_addr) == (0, A)
        assert told[0].ha_broker_addr == "10.0.0.1:10912"
        await master_side.close()
        await until(lambda: len(told) == 2)
        assert (told[1].min_broker_id, told[1].offline_broker_addr) == (1, A)


async def test_two_name_servers_side_by_side(dialer: Dialer) -> None:
    async with running_nameserver() as one, running_nameserver() as two:
        await register(dialer, one)
        await register(dialer, two)
        await register(dialer, two, "t1", "t2", "t3", counter=2)
        assert (await route_of(dialer, one, "t3")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await route_of(dialer, two, "t3")).code == 0
        await one.close()
        assert (await route_of(dialer, two, "t1")).code == 0


# --- settings ---------------------------------------------------------------------------------


async def test_kv_over_the_wire(nameserver: NameServer, dialer: Dialer) -> None:
    answer = await ask(
        dialer, nameserver, RequestCode.PUT_KV_CONFIG, kv.PutKvRequest(namespace="n", key="k", value="v")
    )
    assert answer.code == 0
    assert json.loads(nameserver.kv.path.read_bytes()) == {"configTable": {"n": {"k": "v"}}}
    answer = await ask(dialer, nameserver, RequestCode.GET_KV_CONFIG, kv.GetKvRequest(namespace="n", key="k"))
    assert answer.header(kv.GetKvAnswer).value == "v"
    answer = await ask(
        dialer, nameserver, RequestCode.GET_KVLIST_BY_NAMESPACE, kv.KvListRequest(namespace="n")
    )
    assert KVTable.decode(answer.body).table == {"k": "v"}
    gone = kv.DeleteKvRequest(namespace="n", key="k")
    assert (await ask(dialer, nameserver, RequestCode.DELETE_KV_CONFIG, gone)).code == 0
    answer = await ask(dialer, nameserver, RequestCode.GET_KV_CONFIG, kv.GetKvRequest(namespace="n", key="k"))
    assert (answer.code, answer.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "No config item, Namespace: n Key: k",
    )
    answer = await ask(
        dialer, nameserver, RequestCode.GET_KVLIST_BY_NAMESPACE, kv.KvListRequest(namespace="x")
    )
    assert (answer.code, answer.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: x")
    answer = await ask(dialer, nameserver, RequestCode.PUT_KV_CONFIG, kv.PutKvRequest(key="k", value="v"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "namespace or key is null")


async def test_kv_survives_a_restart(tmp_path: Path, dialer: Dialer) -> None:
    async with running_nameserver(directory=tmp_path) as nameserver:
        put = kv.PutKvRequest(namespace="n", key="k", value="v")
        await ask(dialer, nameserver, RequestCode.PUT_KV_CONFIG, put)
    async with running_nameserver(directory=tmp_path) as nameserver:
        get = kv.GetKvRequest(namespace="n", key="k")
        answer = await ask(dialer, nameserver, RequestCode.GET_KV_CONFIG, get)
        assert answer.header(kv.GetKvAnswer).value == "v"


async def test_a_value_that_cannot_be_saved_is_not_answered_as_saved(tmp_path: Path, dialer: Dialer) -> None:
    (tmp_path / "blocker").write_bytes(b"")
    async with running_nameserver(directory=tmp_path) as nameserver:
        nameserver.kv._file.path = tmp_path / "blocker" / "kv.json"
        put = kv.PutKvRequest(namespace="n", key="k", value="v")
        answer = await ask(dialer, nameserver, RequestCode.PUT_KV_CONFIG, put)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "nothing was changed" in (answer.remark or "")
        get = kv.GetKvRequest(namespace="n", key="k")
        found = await ask(dialer, nameserver, RequestCode.GET_KV_CONFIG, get)
        assert found.code == ResponseCode.QUERY_NOT_FOUND


async def test_ordered_topics_follow_their_configuration(dialer: Dialer) -> None:
    async with running_nameserver(order_message_enable=True) as nameserver:
        await register(dialer, nameserver)

        async def order() -> str | None:
            return TopicRoute.decode((await route_of(dialer, nameserver, "t1")).body).order_topic_conf

        assert await order() is None
        put = kv.PutKvRequest(namespace=ORDER_TOPIC_CONFIG, key="t1", value="broker-a:4")
        await ask(dialer, nameserver, RequestCode.PUT_KV_CONFIG, put)
        assert await order() == "broker-a:4"
        delete = kv.DeleteKvRequest(namespace=ORDER_TOPIC_CONFIG, key="t1")
        await ask(dialer, nameserver, RequestCode.DELETE_KV_CONFIG, delete)
        assert await order() is None


async def test_options_are_shown_and_changed(tmp_path: Path, dialer: Dialer) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("# ours\nlistenPort=9876\nsomebodyElses=1\n")
    async with running_nameserver(directory=tmp_path) as nameserver:

        async def update(text: str) -> tuple[int, str]:
            answer = await ask(dialer, nameserver, RequestCode.UPDATE_NAMESRV_CONFIG, None, text.encode())
            return answer.code, answer.remark or ""

        shown = await ask(dialer, nameserver, RequestCode.GET_NAMESRV_CONFIG)
        assert read_properties(shown.body)["orderMessageEnable"] == "false"
        await register(dialer, nameserver)
        await route_of(dialer, nameserver, "t1")
        put = kv.PutKvRequest(namespace=ORDER_TOPIC_CONFIG, key="t1", value="broker-a:4")
        await ask(dialer, nameserver, RequestCode.PUT_KV_CONFIG, put)

        assert await update("orderMessageEnable=true\nnobodyKnows=1\n") == (0, "")
        assert nameserver.options.order_message_enable
        assert b"broker-a:4" in (await route_of(dialer, nameserver, "t1")).body
        assert read_properties(file.read_text()) == {
            "listenPort": "9876",
            "somebodyElses": "1",
            "orderMessageEnable": "true",
        }
        for key in ("kvConfigPath", "configStorePath", "configBlackList", "rocketmqHome"):
            code, remark = await update(f"{key}=/x\nenableTopicList=false")
            assert (code, remark) == (16, "Can not update config in black list.")
        code, remark = await update("listenPort=1")
        assert code == ResponseCode.SYSTEM_ERROR
        assert "listenPort" in remark
        code, remark = await update("enableTopicList=perhaps")
        assert code == ResponseCode.SYSTEM_ERROR
        assert "true or false" in remark
        assert nameserver.options.enable_topic_list
        assert await update("") == (0, "")


# --- life -------------------------------------------------------------------------------------


async def test_a_taken_port_is_said_so(nameserver: NameServer) -> None:
    with pytest.raises(ListenFailed, match=str(nameserver.port)):
        async with running_nameserver(listen_port=nameserver.port):
            pass


async def test_a_bind_address_may_be_a_name(dialer: Dialer) -> None:
    async with running_nameserver(bind_address="localhost") as nameserver:
        assert (await route_of(dialer, nameserver, "t1")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_starting_and_stopping_is_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kerolox.nameserver.server")
    async with running_nameserver() as nameserver:
        await nameserver.close()
    events = [r.getMessage() for r in caplog.records if r.name == "kerolox.nameserver.server"]
    address = f"127.0.0.1:{nameserver.port}"
    assert events == [f"nameserver_started address={address}", f"nameserver_stopped address={address}"]


async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain, key, trusted = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(chain), append=True)
    certificate.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(trusted))
    files = {"tls_certificate": str(chain), "tls_key": str(key)}
    async with running_nameserver(**files) as nameserver, Dialer(tls=ClientTls(ca=str(trusted))) as secure:
        assert (await register(secure, nameserver)).code == 0
        async with Dialer() as plain:  # permissive is the default
            assert (await route_of(plain, nameserver, "t1")).code == 0


async def test_brokers_that_take_tls_alone_hear_of_another_lowest_id(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    pem, trusted = str(tmp_path / "both.pem"), str(tmp_path / "ca.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(pem)
    authority.cert_pem.write_to_path(trusted)
    told: list[Request[Any]] = []
    handlers = RemotingHandlers()
    handlers.add(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, told.append, None, Lane("test"))
    tls = ServerTls(
        mode=TlsMode.ENFORCING, certificate=pem, key=pem, client_ca=trusted, client_auth=ClientAuth.REQUIRE
    )
    own = {"use_tls": True, "tls_own_ca": trusted, "tls_own_certificate": pem, "tls_own_key": pem}
    async with (
        Server(handlers, host="127.0.0.1", tls=tls) as broker,
        running_nameserver(**own) as nameserver,
    ):
        async with asyncio.timeout(30):
            while not told:  # a notice has a third of a second, which is little on a busy machine
                nameserver._tell([MinIdNotice(to=[broker.address], min_id=1, min_address="10.0.0.1:1")])
                await asyncio.sleep(0.05)


async def test_a_free_port_is_shown_among_the_options(nameserver: NameServer, dialer: Dialer) -> None:
    shown = await ask(dialer, nameserver, RequestCode.GET_NAMESRV_CONFIG)
    assert read_properties(shown.body)["listenPort"] == nameserver.address.rpartition(":")[2] != "0"
