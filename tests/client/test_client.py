"""The client: routes, connections, heartbeats, what brokers ask; against a real broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from kerolox import Client, ClientOptions, Queue, Received
from kerolox.client.cluster import home
from kerolox.client.cluster.heartbeats import fingerprint_of, short_form
from kerolox.client.cluster.members import ConsumingMember, ProducingMember
from kerolox.client.errors import (
    AfterFork,
    BrokerNotRegistered,
    BrokerUnreachable,
    NameServerUnreachable,
    NotANameServer,
    TopicNotFound,
    TopicUnknownAtBroker,
)
from kerolox.errors import Closed, OptionError
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.protocol.bodies.clients import ConsumeDirectlyResult, ConsumeResult, ConsumerRunningInfo
from kerolox.protocol.bodies.heartbeat import ConsumerData, ConsumeType, HeartbeatData, MessageModel
from kerolox.protocol.bodies.members import ConsumerIds
from kerolox.protocol.bodies.offsets import ConsumerStatus, ResetOffsets
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers import heartbeat as headers
from kerolox.protocol.headers.offset import ConsumerStatusRequest, MaxOffsetRequest, ResetOffsetRequest
from kerolox.protocol.signature import verify
from kerolox.protocol.subscription import subscription
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver
from tests.client.kit import create, wait_for


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        yield running


class Producer(ProducingMember):
    group = "producers"


class Consumer(ConsumingMember):
    group = "consumers"

    def __init__(self) -> None:
        self.changes = 0
        self.reset: dict[Queue, int] = {}

    def heartbeat(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=(subscription("orders", "*", 1),),
        )

    def topics(self) -> list[str]:
        return ["orders"]

    def members_changed(self) -> None:
        self.changes += 1

    def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        self.reset.update(offsets)

    def offsets(self, topic: str) -> dict[Queue, int]:
        return {Queue(topic, "broker-a", 0): 5}

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(properties={"x": "y"})

    async def consume_directly(self, message: Received) -> ConsumeDirectlyResult:
        return ConsumeDirectlyResult(consume_result=ConsumeResult.CR_SUCCESS, remark=message.text)


# --- routes -----------------------------------------------------------------------------------------


async def test_a_route_has_queues_and_addresses(running: RunningBroker) -> None:
    await create(running, "orders")
    async with Client(running.nameserver_address) as client:
        route = await client.routes.find("orders")
        assert route.writable == route.readable
        assert route.writable == tuple(Queue("orders", "broker-a", number) for number in range(4))
        assert client.address("broker-a") == running.address
        assert client.address("broker-a", 7) == running.address  # the next best, for reading
        with pytest.raises(BrokerNotRegistered):
            client.address("broker-a", 7, exact=True)
        assert await client.routes.find("orders") is route
        assert await client.routes.refresh("orders") is route, "an unchanged route stays the same object"


async def test_a_new_topic_gets_the_template_s_route(running: RunningBroker) -> None:
    async with Client(running.nameserver_address) as client:
        route = await client.routes.find_for_sending("not_yet", "TBW102", 4)
        assert route.assumed
        assert len(route.writable) == 4
        with pytest.raises(TopicNotFound, match="kerolox topic create"):
            await client.routes.refresh("not_yet")
        assert client.routes.known.get("not_yet") is route


async def test_topic_absent(running: RunningBroker) -> None:
    async with Client(running.nameserver_address) as client:
        with pytest.raises(TopicNotFound) as caught:
            await client.routes.find_for_sending("nowhere", "", 4)
        assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
        assert not caught.value.retriable
        assert caught.value.next_step


async def test_topics_are_not_made_on_the_way() -> None:
    async with (
        running_broker(auto_create_topics=False) as running,
        Client(running.nameserver_address) as client,
    ):
        with pytest.raises(TopicNotFound, match="autoCreateTopicEnable"):
            await client.routes.find_for_sending("nowhere", "TBW102", 4)


async def test_no_broker_registered() -> None:
    async with running_nameserver() as nameserver, Client(nameserver.address) as client:
        with pytest.raises(BrokerNotRegistered, match="no broker at all"):
            await client.routes.find_for_sending("orders", "TBW102", 4)


async def test_wrong_name_server(running: RunningBroker, unused_tcp_port: int) -> None:
    async with Client(f"127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(NameServerUnreachable, match=f"127.0.0.1:{unused_tcp_port}"):
            await client.routes.find("orders")
    async with Client(running.address) as client:  # that is a broker
        with pytest.raises(NotANameServer, match="not that of a broker"):
            await client.routes.find("orders")


async def test_one_name_server_of_two_is_enough(running: RunningBroker, unused_tcp_port: int) -> None:
    await create(running, "orders")
    async with Client([f"127.0.0.1:{unused_tcp_port}", running.nameserver_address]) as client:
        await client.routes.find("orders")
        await client.routes.refresh("orders")
        assert client.nameservers.addresses[0] == running.nameserver_address, (
            "the one that answers comes first"
        )


async def test_an_advertised_address_that_does_not_lead_there() -> None:
    async with (
        running_broker(advertised_host="127.0.0.77") as running,
        Client(running.nameserver_address) as client,
    ):
        await client.routes.find_for_sending("orders", "TBW102", 4)
        address = client.address("broker-a")
        assert address.startswith("127.0.0.77:")
        with pytest.raises(BrokerUnreachable, match=f"advertises {address}.*brokerIP1") as caught:
            await client.peer(address)
        assert caught.value.broker == "broker-a"
        assert caught.value.retriable


async def test_an_error_code_becomes_an_error_of_its_kind(running: RunningBroker) -> None:
    async with Client(running.nameserver_address) as client:
        asked = ResetOffsetRequest(topic="none", group="g")
        with pytest.raises(TopicUnknownAtBroker) as caught:
            await client.ask(running.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked)
        assert caught.value.response_code == ResponseCode.TOPIC_NOT_EXIST
        assert caught.value.address == running.address


# --- life -------------------------------------------------------------------------------------------


async def test_who_lets_go_last_closes(running: RunningBroker) -> None:
    client = Client(running.nameserver_address)
    with pytest.raises(Closed):
        client.check_open()
    async with client:
        async with client:
            pass
        assert client.is_open
        await client.masters()
    assert not client.is_open
    with pytest.raises(Closed):
        await client.open()
    await client.close()


async def test_a_group_has_one_member_per_client(running: RunningBroker) -> None:
    async with Client(running.nameserver_address) as client:
        client.add_producer(Producer())
        with pytest.raises(OptionError, match="producers"):
            client.add_producer(Producer())


async def test_after_a_fork_the_error_is_clear(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(running.nameserver_address) as client:
        monkeypatch.setattr(home, "_forks", home._forks + 1)
        with pytest.raises(AfterFork, match="parent process"):
            client.check_open()


async def test_nothing_is_left_behind(running: RunningBroker) -> None:
    before = asyncio.all_tasks()
    async with Client(running.nameserver_address) as client:
        await client.routes.find_for_sending("orders", "TBW102", 4)
        await client.heartbeat()
        peer = client.ready_peer(running.address)
        assert peer is not None
    assert peer.is_closed
    await wait_for(lambda: asyncio.all_tasks() <= before)


# --- heartbeats and membership ----------------------------------------------------------------------


async def members(running: RunningBroker, group: str) -> list[str]:
    async with Dialer() as dialer:
        asked = headers.ConsumerListRequest(consumer_group=group)
        answer = await dialer.call(running.address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
        return list(ConsumerIds.decode(answer.body).consumer_id_list) if answer.code == 0 else []


async def test_a_broker_hears_of_us_first(running: RunningBroker) -> None:
    """Before any other request on the connection: so it can ask back."""
    await create(running, "orders")
    async with Client(running.nameserver_address) as client:
        consumer = Consumer()
        client.add_consumer(consumer)
        await client.routes.find("orders")
        asked = MaxOffsetRequest(topic="orders", queue_id=0)
        await client.ask(running.address, RequestCode.GET_MAX_OFFSET, asked)
        assert await members(running, "consumers") == [client.client_id]
        await wait_for(lambda: consumer.changes)
        await client.remove_consumer(consumer)
        assert await members(running, "consumers") == []


async def test_heartbeats_go_to_all_brokers_of_the_routes(running: RunningBroker) -> None:
    await create(running, "orders")
    async with (
        running_broker(nameserver=running.nameserver, broker_name="broker-b") as other,
        Client(running.nameserver_address) as client,
    ):
        await create(other, "orders")
        client.add_consumer(Consumer())
        await client.refresh_routes()
        assert await client.heartbeat() == 2
        assert await members(running, "consumers") == await members(other, "consumers") == [client.client_id]
        assert client.heartbeats.versions[running.address] > 400


async def test_a_broker_that_came_back_hears_of_us_again(running: RunningBroker) -> None:
    await create(running, "orders")
    async with Client(running.nameserver_address) as client:
        client.add_consumer(Consumer())
        await client.refresh_routes()
        await client.heartbeat()
        peer = client.ready_peer(running.address)
        assert peer is not None
        peer.close("for the test")
        assert client.ready_peer(running.address) is None
        asked = MaxOffsetRequest(topic="orders", queue_id=0)
        await client.ask(running.address, RequestCode.GET_MAX_OFFSET, asked)
        assert await members(running, "consumers") == [client.client_id]


async def test_short_heartbeats_repeat_nothing(running: RunningBroker) -> None:
    await create(running, "orders")
    async with Client(ClientOptions(running.nameserver_address, heartbeat_v2=True)) as client:
        client.add_consumer(Consumer())
        await client.refresh_routes()
        for _ in range(3):
            assert await client.heartbeat() == 1
        assert await members(running, "consumers") == [client.client_id]
        confirmed = client.heartbeats._confirmed
        assert list(confirmed.values()) == [fingerprint_of(client.heartbeats.data())]


def test_a_fingerprint_changes_with_what_groups_want() -> None:
    def data(client: str, version: int, *tags: str) -> HeartbeatData:
        wanted = tuple(subscription(f"t{number}", tag, version) for number, tag in enumerate(tags))
        consumer = ConsumerData(group_name="g", subscription_data_set=wanted)
        return HeartbeatData(client_id=client, consumer_data_set=(consumer,))

    assert fingerprint_of(data("a", 1, "A")) == fingerprint_of(data("b", 2, "A"))
    assert fingerprint_of(data("a", 1, "A")) != fingerprint_of(data("a", 1, "B"))
    assert short_form(data("a", 1, "A")).without_sub
    assert short_form(data("a", 1, "A")).consumer_data_set[0].subscription_data_set == ()


# --- what brokers ask -------------------------------------------------------------------------------


@pytest.fixture
async def asked_by_a_broker() -> AsyncIterator[tuple[Client, Consumer, Callable[..., object]]]:
    """A server in place of a broker, and a way to ask the client something over its connection."""
    server = Server(RemotingHandlers(), host="127.0.0.1")
    peers = []

    def heartbeat(request: Request[object]) -> Answer:
        peers.append(request.caller)
        return Answer()

    server.handlers.add(RequestCode.HEART_BEAT, heartbeat, None, Lane("test"))
    server.handlers.add(RequestCode.UNREGISTER_CLIENT, lambda request: Answer(), None, Lane("test"))
    async with server, Client("127.0.0.1:1") as client:
        consumer = Consumer()
        client.add_consumer(consumer)
        await client.peer(server.address)
        await wait_for(lambda: peers)
        yield client, consumer, peers[0]


async def test_brokers_ask_and_members_answer(asked_by_a_broker: tuple[Client, Consumer, object]) -> None:
    _, consumer, peer = asked_by_a_broker
    queue = Queue("orders", "broker-a", 0)

    async def ask(code: int, header: object, body: bytes = b"") -> Command:
        return await peer.request(code, header, body)  # type: ignore[attr-defined,no-any-return]

    peer.tell(  # type: ignore[attr-defined]
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        ResetOffsetRequest(topic="orders", group="consumers"),
        ResetOffsets(offset_table={queue.wire(): 3}).encode(),
    )
    answer = await ask(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatusRequest(topic="orders", group="consumers")
    )
    assert ConsumerStatus.decode(answer.body).message_queue_table == {queue.wire(): 5}
    assert consumer.reset == {queue: 3}

    about = headers.ConsumerRunningInfoRequest(consumer_group="consumers", client_id="x", jstack_enable=True)
    info = ConsumerRunningInfo.decode((await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, about)).body)
    assert info.properties == {"x": "y"}
    assert "MainThread" in (info.jstack or "")

    from tests.client.test_messages import GOLDEN

    direct = headers.ConsumeDirectlyRequest(consumer_group="consumers", broker_name="broker-a")
    result = ConsumeDirectlyResult.decode(
        (await ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct, GOLDEN)).body
    )
    assert (result.consume_result, result.remark) == (ConsumeResult.CR_SUCCESS, "hello")

    about = headers.ConsumerRunningInfoRequest(consumer_group="others", client_id="x")
    assert (await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, about)).code == ResponseCode.SYSTEM_ERROR
    assert (await ask(RequestCode.PULL_MESSAGE, None)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- signing and namespaces -------------------------------------------------------------------------


async def test_requests_are_signed_and_carry_the_namespace() -> None:
    server = Server(RemotingHandlers(), host="127.0.0.1")
    seen: list[Command] = []

    def heartbeat(request: Request[object]) -> Answer:
        seen.append(request.ticket)
        return Answer()

    server.handlers.add(RequestCode.HEART_BEAT, heartbeat, None, Lane("test"))
    options = ClientOptions("127.0.0.1:1", access_key="me", secret_key="12345678", namespace_v2="house")
    async with server, Client(options) as client:
        await client.peer(server.address)
        await wait_for(lambda: seen)
    fields = seen[0].fields
    assert fields["AccessKey"] == "me"
    assert (fields["ns"], fields["nsd"]) == ("house", "true")
    assert verify(fields, seen[0].body, "12345678", 479)


async def test_the_vip_channel_is_the_port_two_below(running: RunningBroker) -> None:
    async with Client(ClientOptions(running.nameserver_address, vip_channel=True)) as client:
        assert client.vip("10.0.0.1:10911") == "10.0.0.1:10909"
    async with Client(running.nameserver_address) as client:
        assert client.vip("10.0.0.1:10911") == "10.0.0.1:10911"
