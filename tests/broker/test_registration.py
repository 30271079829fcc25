"""The broker and its name servers: what they are told, when, and what happens when they are away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from kerolox.broker.members import heartbeats as heartbeats_of_members
from kerolox.broker.nameservers.group_members import split_nameservers
from kerolox.broker.options import BrokerOptions
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.nameserver.kv import ORDER_TOPIC_CONFIG
from kerolox.nameserver.listings import cluster_info
from kerolox.nameserver.server import NameServer
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.net.tls import ClientAuth, TlsMode
from kerolox.protocol.bodies.registration import Registration, body_crc32
from kerolox.protocol.bodies.routes import ClusterInfo
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import kv
from kerolox.protocol.headers.registration import RegisterBrokerRequest, UnregisterBrokerRequest
from kerolox.testing.broker import running_broker
from kerolox.testing.nameserver import running_nameserver

from .talk import Talk, until


class Listener:
    """A name server that only writes down what it is told."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.told: list[tuple[RegisterBrokerRequest, Registration]] = []
        self.left: list[UnregisterBrokerRequest] = []
        self.crcs: list[bool] = []
        self.answer = Answer()
        self.answers = asyncio.Event()
        self.answers.set()

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def topics(self) -> list[set[str]]:
        """Of each registration."""
        return [set(body.topic_config_serialize_wrapper.topic_config_table) for _, body in self.told]

    async def register(self, request: Request[RegisterBrokerRequest]) -> Answer:
        self.told.append((request.header, Registration.decode(request.body)))
        self.crcs.append(request.header.body_crc32 == body_crc32(request.body))
        await self.answers.wait()
        return self.answer

    def unregister(self, request: Request[UnregisterBrokerRequest]) -> Answer:
        self.left.append(request.header)
        return Answer()


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    handlers, lane = RemotingHandlers(), Lane("all")
    async with Server(handlers, host="127.0.0.1") as server:
        ours = Listener(server)
        handlers.add(RequestCode.REGISTER_BROKER, ours.register, RegisterBrokerRequest, lane)
        handlers.add(RequestCode.UNREGISTER_BROKER, ours.unregister, UnregisterBrokerRequest, lane)
        yield ours


async def cluster_of(dialer: Dialer, nameserver: NameServer) -> ClusterInfo:
    answer = await dialer.call(nameserver.address, RequestCode.GET_BROKER_CLUSTER_INFO)
    return ClusterInfo.decode(answer.body)


async def test_a_started_broker_is_known_with_its_topics() -> None:
    async with running_broker(cluster="c", broker_name="b") as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        route = await talk.route("TBW102")
        assert route is not None
        (broker,) = route.broker_datas
        assert (broker.cluster, broker.broker_name, broker.broker_addrs) == ("c", "b", {0: running.address})
        (queue,) = route.queue_datas
        assert (queue.broker_name, queue.perm, queue.read_queue_nums) == ("b", 7, 8)


async def test_the_first_registration_tells_everything_and_a_change_only_itself() -> None:
    async with listening() as listener, running_broker(nameservers=listener.address) as running:
        ((header, body),) = listener.told
        assert header == RegisterBrokerRequest(
            broker_name="broker-a",
            broker_addr=running.address,
            cluster_name="DefaultCluster",
            broker_id=0,
            ha_server_addr=f"127.0.0.1:{running.broker.endpoints.port + 1}",
            enable_acting_master=False,
            body_crc32=header.body_crc32,
            broker_identity="settings 0",
            broker_start=header.broker_start,
        )
        assert len(body.topic_config_serialize_wrapper.topic_config_table) >= 2
        first_version = body.topic_config_serialize_wrapper.data_version

        running.broker.tables.topics.put(TopicConfig(topic_name="new"))
        await until(lambda: len(listener.told) == 2)
        assert listener.topics[1] == {"new"}
        told = listener.told[1][1].topic_config_serialize_wrapper
        assert told.data_version.newer_than(first_version)
        assert told.data_version == running.broker.tables.topics.table.version
        for name in ("more", "and_more"):  # of one turn of the loop: told together
            running.broker.tables.topics.put(TopicConfig(topic_name=name))
        await until(lambda: len(listener.told) == 3)
        assert listener.topics[2] == {"more", "and_more"}
        assert listener.left == []
    assert [(left.broker_name, left.broker_addr) for left in listener.left] == [("broker-a", running.address)]
    assert all(listener.crcs)


@pytest.mark.parametrize("count", [1, 40])
async def test_a_changed_topic_takes_no_other_off_a_name_server_that_deletes(
    tmp_path: Path, count: int
) -> None:
    """With deleteTopicWithBrokerRegistration a registration names all the topics there are."""
    async with (
        running_nameserver(
            directory=tmp_path / "n", delete_topic_with_broker_registration=True
        ) as nameserver,
        running_broker(
            directory=tmp_path / "b", nameserver=nameserver, register_interval_ms=60_000
        ) as running,
        Dialer() as dialer,
    ):
        await running.create_topic("first")
        for number in range(count):
            running.broker.tables.topics.put(TopicConfig(topic_name=f"T{number}", read_queue_nums=3))
        await until(lambda: {f"T{number}" for number in range(count)} <= nameserver.routes.topics.keys())
        await running.broker.nameservers.registrations.settled()
        assert running.broker.tables.topics.table.topics.keys() <= nameserver.routes.topics.keys()
        route = await Talk(dialer, running).route("T0")
        assert route is not None
        assert [queue.read_queue_nums for queue in route.queue_datas] == [3]


async def test_a_topic_made_by_a_send_reaches_the_name_server_at_once() -> None:
    async with running_broker() as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        assert await talk.route("new") is None
        await talk.send("new", default_topic_queue_nums=3)
        await running.broker.nameservers.settled()
        route = await talk.route("new")
        assert route is not None
        assert [(q.read_queue_nums, q.perm) for q in route.queue_datas] == [(3, 6)]


async def test_a_stopped_broker_is_gone_at_once() -> None:
    async with running_nameserver() as nameserver, Dialer() as dialer:
        async with running_broker(nameserver=nameserver):
            assert set((await cluster_of(dialer, nameserver)).broker_addr_table) == {"broker-a"}
        assert (await cluster_of(dialer, nameserver)).broker_addr_table == {}


async def test_every_name_server_is_told_and_one_that_is_away_holds_nobody_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with listening() as one, listening() as two:
        away = "127.0.0.1:1"
        addresses = f"{away};{one.address},{two.address};{one.address}"
        async with running_broker(nameservers=addresses) as running:
            assert [line.address for line in running.broker.nameservers.registrations.lines] == [
                away, one.address, two.address,
            ]  # fmt: skip
            assert (len(one.told), len(two.told)) == (1, 1)
            running.broker.tables.topics.put(TopicConfig(topic_name="new"))
            await running.broker.nameservers.settled()
            assert one.topics[1] == two.topics[1] == {"new"}
    failures = [record for record in caplog.records if "register_failed" in record.message]
    assert len(failures) == 1  # said once, however often it is tried
    assert away in failures[0].message


async def test_a_name_server_that_comes_back_is_told_everything() -> None:
    async with running_broker(nameservers="127.0.0.1:1") as running:
        (line,) = running.broker.nameservers.registrations.lines
        assert not line.knows_us
        running.broker.tables.topics.put(TopicConfig(topic_name="meanwhile"))
        async with listening() as listener:
            line.address = listener.address
            await until(lambda: len(listener.told) == 1)
            assert "meanwhile" in listener.topics[0]
            port = listener.server.port
        await until(lambda: not line.knows_us)
        handlers, lane = RemotingHandlers(), Lane("all")
        async with Server(handlers, host="127.0.0.1", port=port) as server:
            again = Listener(server)
            handlers.add(RequestCode.REGISTER_BROKER, again.register, RegisterBrokerRequest, lane)
            handlers.add(RequestCode.UNREGISTER_BROKER, again.unregister, UnregisterBrokerRequest, lane)
            await until(lambda: line.knows_us)
            assert again.topics[0] == set(running.broker.tables.topics.table.topics)


async def test_what_a_name_server_refuses_is_told_again() -> None:
    async with listening() as listener, running_broker(nameservers=listener.address) as running:
        listener.answer = Answer(code=1, remark="on purpose")
        running.broker.tables.topics.put(TopicConfig(topic_name="new"))
        await until(lambda: len(listener.told) >= 3)
        listener.answer = Answer()
        await until(lambda: running.broker.nameservers.registrations.lines[0].knows_us)
        assert "new" in listener.topics[-1]
        assert len(listener.topics[-1]) > 2  # all of it, since nobody knows what was kept


async def test_everything_is_told_again_by_interval() -> None:
    async with listening() as listener, running_broker(nameservers=listener.address, register_interval_ms=50):
        await until(lambda: len(listener.told) >= 4)
        assert {len(topics) for topics in listener.topics} == {len(listener.topics[0])}


async def test_the_name_servers_word_on_ordered_topics_counts() -> None:
    async with running_nameserver() as nameserver, Dialer() as dialer:
        put = kv.PutKvRequest(namespace=ORDER_TOPIC_CONFIG, key="o", value="broker-a:4")
        assert (await dialer.call(nameserver.address, RequestCode.PUT_KV_CONFIG, put)).code == 0
        async with running_broker(nameserver=nameserver) as running:
            for name in ("o", "p"):
                running.broker.tables.topics.put(TopicConfig(topic_name=name))
            topics = running.broker.tables.topics

            def ordered(name: str) -> bool:
                config = topics.find(name)
                return config is not None and config.order

            await until(lambda: ordered("o"))
            await running.broker.nameservers.settled()
            assert not ordered("p")


async def test_rights_the_broker_lost_are_told() -> None:
    async with running_broker() as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await talk.send("T")
        answer = await dialer.call(
            running.address, RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=4"
        )
        assert answer.code == 0, answer.remark

        async def perms() -> Any:
            route = await talk.route("T")
            return route and [queue.perm for queue in route.queue_datas]

        for _ in range(500):
            if await perms() == [4]:
                break
        assert await perms() == [4]
        template = await talk.route("TBW102")
        assert template is not None
        assert template.queue_datas[0].perm == 4
        await dialer.call(running.address, RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=6")
        for _ in range(500):
            if await perms() == [6]:
                break
        assert await perms() == [6]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("", []),
        (" a:1 ; b:2 ", ["a:1", "b:2"]),
        ("http://a:1/,b:2;;a:1", ["a:1", "b:2"]),
    ],
)
def test_lists_of_name_servers(text: str, addresses: list[str]) -> None:
    assert split_nameservers(text) == addresses


# --- TLS ----------------------------------------------------------------------------------------------


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    """Files of a name server's certificate, of one for the broker, and of the authority of both."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("server", "broker"):
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
    return {path.name: str(path) for path in tmp_path.iterdir()}


async def test_it_registers_over_tls(
    certificates: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name server takes nothing else, and wants to see a certificate."""
    settings = {
        "tls_mode": TlsMode.ENFORCING,
        "tls_certificate": certificates["server.pem"],
        "tls_key": certificates["server.key"],
        "tls_client_ca": certificates["ca.pem"],
        "tls_client_auth": ClientAuth.REQUIRE,
    }
    ours = {
        "use_tls": True,
        "tls_own_ca": certificates["ca.pem"],
        "tls_own_certificate": certificates["broker.pem"],
        "tls_own_key": certificates["broker.key"],
    }
    async with running_nameserver(directory=tmp_path / "ns", **settings) as nameserver:
        with caplog.at_level(logging.WARNING):
            async with running_broker(nameserver=nameserver, directory=tmp_path / "b", **ours):
                assert set(cluster_info(nameserver.routes).broker_addr_table) == {"broker-a"}
            assert cluster_info(nameserver.routes).broker_addr_table == {}  # it said good-bye, too
    assert "servers_not_verified role=broker" not in caplog.text


@pytest.mark.parametrize("changes", [{}, {"use_tls": True}], ids=["plain", "without a certificate"])
async def test_who_does_not_speak_as_the_name_server_wants_is_not_registered(
    certificates: dict[str, str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = {
        "tls_mode": TlsMode.ENFORCING,
        "tls_certificate": certificates["server.pem"],
        "tls_key": certificates["server.key"],
        "tls_client_ca": certificates["ca.pem"],
        "tls_client_auth": ClientAuth.REQUIRE,
    }
    async with (
        running_nameserver(directory=tmp_path / "ns", **settings) as nameserver,
        running_broker(nameserver=nameserver, directory=tmp_path / "b", **changes),
    ):
        assert cluster_info(nameserver.routes).broker_addr_table == {}


def test_which_tls_is_spoken() -> None:
    assert BrokerOptions().own_tls is None
    assert BrokerOptions(use_tls=False, tls_mode=TlsMode.ENFORCING).own_tls is None
    unverified = BrokerOptions(tls_mode=TlsMode.ENFORCING).own_tls
    assert unverified is not None
    assert not unverified.verify
    verified = BrokerOptions(use_tls=True, tls_own_ca="ca.pem").own_tls
    assert verified is not None
    assert verified.verify
    trusting = BrokerOptions(use_tls=True, tls_own_ca="ca.pem", tls_own_verify=False).own_tls
    assert trusting is not None
    assert not trusting.verify


async def test_the_heartbeats_of_a_new_group_are_answered_when_its_retry_topic_is_registered() -> None:
    async with (
        listening() as listener,
        running_broker(nameservers=listener.address) as running,
        Dialer() as dialer,
    ):
        talk = Talk(dialer, running)
        listener.answers.clear()
        heartbeats = [asyncio.ensure_future(talk.heartbeat("new")) for _ in range(2)]
        await until(lambda: "%RETRY%new" in listener.topics[-1])
        # Another request over the same connection is answered meanwhile.
        assert (await dialer.call(running.address, RequestCode.GET_BROKER_CONFIG)).code == 0
        assert not any(heartbeat.done() for heartbeat in heartbeats)
        assert running.broker.membership.members.members("new") is not None  # it is a member already
        listener.answers.set()
        assert [(await heartbeat).code for heartbeat in heartbeats] == [0, 0]
        told = len(listener.told)
        assert (await talk.heartbeat("new")).code == 0
        assert len(listener.told) == told


async def test_a_name_server_that_is_silent_delays_no_heartbeat_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats_of_members, "ANNOUNCE_S", 0.05)
    async with (
        listening() as listener,
        running_broker(nameservers=listener.address) as running,
        Dialer() as dialer,
    ):
        listener.answers.clear()
        assert (await Talk(dialer, running).heartbeat("new")).code == 0
        listener.answers.set()
