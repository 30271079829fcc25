"""The producer, against a real broker in this process; and against servers that misbehave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kerolox import Client, ClientOptions, Message, Producer, ProducerOptions, Queue, Receipt, SendStatus
from kerolox.client.errors import (
    AccessDenied,
    BrokerBusy,
    InvalidMessage,
    MessageRefused,
    NoRoute,
    NotAllowedThere,
    SendFailed,
    SendTimeout,
    SomeFailed,
    TopicNotFound,
)
from kerolox.client.send.hooks import SendContext, SendHook
from kerolox.errors import Closed, ConnectFailed, OptionError, RequestTimeout
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.protocol.bodies.routes import BrokerData, QueueData, TopicRoute
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import decode_command
from kerolox.protocol.flags import COMPRESSED
from kerolox.protocol.frame import BINARY, FrameSplitter
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.java import java_hash
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import create, stored, wait_for


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        await create(running, "orders")
        yield running


@pytest.fixture
async def producer(running: RunningBroker) -> AsyncIterator[Producer]:
    async with Producer(running.nameserver_address, group="shop") as producer:
        yield producer


# --- plain sends ------------------------------------------------------------------------------------


async def test_a_receipt_says_where_the_message_is(producer: Producer, running: RunningBroker) -> None:
    message = Message("orders", b"hello", tags="paid", keys=["o-17"], properties={"colour": "red"}, flag=3)
    receipt = await producer.send(message)
    assert receipt.ok
    assert receipt.status is SendStatus.OK
    assert receipt.queue.topic == "orders"
    (found,) = await stored(running.nameserver_address, "orders")
    assert (found.body, found.tags, found.keys, found.flag) == (b"hello", "paid", ("o-17",), 3)
    assert found.get("colour") == "red"
    assert found.msg_id == receipt.msg_id == receipt.transaction_id
    assert found.offset_msg_id == receipt.offset_msg_id
    assert (found.queue, found.queue_offset) == (receipt.queue, receipt.queue_offset)


async def test_text_is_sent_as_utf8(producer: Producer, running: RunningBroker) -> None:
    await producer.send(Message("orders", "grün", tags="schön", properties={"ключ": "значение"}))
    (found,) = await stored(running.nameserver_address, "orders")
    assert (found.text, found.tags, found.get("ключ")) == ("grün", "schön", "значение")


async def test_queues_take_turns(producer: Producer) -> None:
    receipts = [await producer.send(Message("orders", b"x")) for _ in range(8)]
    assert sorted(receipt.queue.queue_id for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_topic_is_made_on_the_way(producer: Producer, running: RunningBroker) -> None:
    receipt = await producer.send(Message("brand_new", b"first"))
    assert receipt.ok
    assert [m.body for m in await stored(running.nameserver_address, "brand_new")] == [b"first"]


async def test_a_topic_is_not_made_when_told_not_to(running: RunningBroker) -> None:
    options = ProducerOptions(template_topic="")
    async with Producer(running.nameserver_address, group="shop", options=options) as producer:
        with pytest.raises(TopicNotFound):
            await producer.send(Message("brand_new", b"first"))


@pytest.mark.parametrize("encoding", [0, BINARY], ids=["json", "binary"])
async def test_either_header_encoding(running: RunningBroker, encoding: int) -> None:
    options = ClientOptions(running.nameserver_address, encoding=encoding)
    async with Producer(options, group="shop") as producer:
        assert (await producer.send(Message("orders", b"x", tags="a%b"))).ok
    (found,) = await stored(running.nameserver_address, "orders")
    assert found.tags == "a%b"


def test_the_template_says_what_the_typed_header_says() -> None:
    from kerolox.client.calls.outgoing import Outgoing, Target

    queue = Queue("a%b", "broker%d", 3)
    target = Target(queue, "x:1", "gr%oup", unit_mode=True, template_queues=7)
    outgoing = Outgoing(
        "a%b", b"body", 'TAGS\x01"é\\%\x02', "U", born_ms=123, flag=-5, sys_flag=0x301, code=310
    )
    quick = target.command(outgoing, 9, 0, from_template=True).encode()
    slow = target.command(outgoing, 9, 0, from_template=False).encode()
    (first,), (second,) = FrameSplitter().feed(quick), FrameSplitter().feed(slow)
    first_command, second_command = decode_command(*first), decode_command(*second)
    assert first_command.header(SendRequestV2) == second_command.header(SendRequestV2)
    assert first_command.fields == second_command.fields
    assert (first_command.code, first_command.opaque, first_command.flag) == (310, 9, 0)
    assert first_command.body == second_command.body == b"body"


@pytest.mark.parametrize("token", ["", 'to"ken€'])
def test_the_template_signs_what_the_long_way_signs(token: str) -> None:
    from kerolox.client.calls.outgoing import Outgoing, Target
    from kerolox.client.calls.signing import finish_request, frame_signer
    from kerolox.protocol.signature import verify

    options = ClientOptions("x:1", access_key='k"ey%', secret_key="secret", security_token=token)
    target = Target(Queue("a%b", 'bro"ker%d', 3), "x:1", "grüp", unit_mode=True, template_queues=7)
    for code, flag, body in ((310, 0, b"body"), (310, -5, b""), (320, 7, b"\x00" * 5000)):
        outgoing = Outgoing(
            "a%b", body, 'TAGS\x01"é\\%\x02', "U", born_ms=123, flag=flag, sys_flag=0x301, code=code
        )
        slow = target.command(outgoing, 9, 0, from_template=False)
        finish_request(slow, options)
        quick = target.command(outgoing, 9, 0, from_template=True, signer=frame_signer(options))
        (first,), (second,) = FrameSplitter().feed(quick.encode()), FrameSplitter().feed(slow.encode())
        got = decode_command(*first)
        assert got.fields == decode_command(*second).fields
        assert (got.code, got.opaque, got.body) == (code, 9, body)
        assert verify(got.fields, got.body, "secret", got.version)
        assert target.command(outgoing, 9, 0, from_template=True).encode() != quick.encode()


# --- where to ---------------------------------------------------------------------------------------


async def test_equal_keys_go_to_one_queue(producer: Producer) -> None:
    queues = await producer.queues("orders")
    for key in ("a", "order-17", "ключ"):
        receipts = [await producer.send(Message("orders", b"x"), order_key=key) for _ in range(3)]
        assert {receipt.queue for receipt in receipts} == {queues[abs(java_hash(key)) % 4]}


async def test_to_a_queue_and_by_a_selector(producer: Producer) -> None:
    queues = await producer.queues("orders")
    assert (await producer.send(Message("orders", b"x"), queue=queues[2])).queue == queues[2]

    def last(choice: Any, message: Message) -> Queue:
        assert message.body == b"y"
        return choice[-1]  # type: ignore[no-any-return]

    assert (await producer.send(Message("orders", b"y"), selector=last)).queue == queues[3]
    with pytest.raises(InvalidMessage, match="not a writable queue"):
        await producer.send(Message("orders", b"x"), queue=Queue("orders", "broker-z", 0))
    with pytest.raises(InvalidMessage, match="only one"):
        await producer.send(Message("orders", b"x"), queue=queues[0], order_key="k")


# --- many -------------------------------------------------------------------------------------------


async def test_many_in_order(producer: Producer, running: RunningBroker) -> None:
    messages = [Message("orders", b"%d" % number) for number in range(3000)]
    receipts = await producer.send_many(messages)
    assert len(receipts) == 3000
    found = {message.msg_id: message.body for message in await stored(running.nameserver_address, "orders")}
    assert [found[receipt.msg_id] for receipt in receipts] == [message.body for message in messages]


async def test_many_to_one_queue_keep_their_order(producer: Producer, running: RunningBroker) -> None:
    receipts = await producer.send_many([Message("orders", b"%d" % n) for n in range(100)], order_key="k")
    assert [receipt.queue_offset for receipt in receipts] == list(range(100))
    assert [m.body for m in await stored(running.nameserver_address, "orders")] == [
        b"%d" % n for n in range(100)
    ]


async def test_one_bad_message_does_not_keep_others_back(producer: Producer) -> None:
    messages = [Message("orders", b"a"), Message("orders", b""), Message("orders", b"b")]
    with pytest.raises(SomeFailed) as caught:
        await producer.send_many(messages)
    first, second, third = caught.value.results
    assert isinstance(first, Receipt)
    assert isinstance(second, InvalidMessage)
    assert isinstance(third, Receipt)
    results: list[Any] = await producer.send_many(messages, return_errors=True)
    assert [type(result) for result in results] == [Receipt, InvalidMessage, Receipt]
    assert await producer.send_many([]) == []


async def test_a_batch_is_one_request_and_many_receipts(producer: Producer, running: RunningBroker) -> None:
    receipts = await producer.send_batch(
        [Message("orders", b"%d" % n, tags="t", keys=[f"k{n}"]) for n in range(5)]
    )
    assert len({receipt.queue for receipt in receipts}) == 1
    assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2, 3, 4]
    found = await stored(running.nameserver_address, "orders")
    assert [(m.msg_id, m.offset_msg_id) for m in found] == [(r.msg_id, r.offset_msg_id) for r in receipts]
    assert [m.keys for m in found] == [(f"k{n}",) for n in range(5)]
    assert await producer.send_batch([]) == []


async def test_a_batch_is_split_by_size(running: RunningBroker) -> None:
    options = ProducerOptions(message_bytes_max=10_000)
    async with Producer(running.nameserver_address, group="shop", options=options) as producer:
        receipts = await producer.send_batch([Message("orders", bytes([n]) * 5000) for n in range(6)])
    assert len({receipt.queue for receipt in receipts}) == 1
    found = await stored(running.nameserver_address, "orders")
    assert [m.body for m in found] == [bytes([n]) * 5000 for n in range(6)]
    assert [m.sys_flag & COMPRESSED for m in found] == [0] * 6


@pytest.mark.parametrize(
    "messages",
    [
        [Message("orders", b"x"), Message("others", b"x")],
        [Message("orders", b"x", delay_level=1)],
        [Message("orders", b"x"), Message("orders", b"x", wait_stored=False)],
        [Message("%RETRY%g", b"x")],
        [Message("orders", b"")],
    ],
    ids=["topics", "delay", "wait", "retry", "empty"],
)
async def test_what_cannot_be_a_batch(producer: Producer, messages: list[Message]) -> None:
    with pytest.raises(InvalidMessage):
        await producer.send_batch(messages)


async def test_one_way(producer: Producer, running: RunningBroker) -> None:
    for number in range(3):
        await producer.send_oneway(Message("orders", b"%d" % number), order_key="k")
    await producer.send(Message("orders", b"last"), order_key="k")
    found = await stored(running.nameserver_address, "orders")
    assert [m.body for m in found] == [b"0", b"1", b"2", b"last"]


async def test_sends_that_linger_become_batches(running: RunningBroker) -> None:
    options = ProducerOptions(linger_s=0.01, linger_count_max=40)
    async with Producer(running.nameserver_address, group="shop", options=options) as producer:
        await producer.queues("orders")
        messages = [Message("orders", b"%d" % number) for number in range(100)]
        receipts = await asyncio.gather(*(producer.send(message) for message in messages))
    # 40, 40 and 20: each batch lies in one queue, one after the other.
    assert [len({r.queue for r in receipts[a:b]}) for a, b in ((0, 40), (40, 80), (80, 100))] == [1, 1, 1]
    found = {m.msg_id: m.body for m in await stored(running.nameserver_address, "orders")}
    assert [found[receipt.msg_id] for receipt in receipts] == [message.body for message in messages]


@pytest.mark.parametrize("known", [True, False], ids=["known", "first burst"])
async def test_a_burst_that_lingers_is_spread(running: RunningBroker, known: bool) -> None:
    await create(running, "many", queues=16)
    options = ProducerOptions(linger_s=60.0, timeout_s=100.0)
    async with Producer(running.nameserver_address, group="shop", options=options) as producer:
        if known:
            await producer.queues("orders")
            await producer.queues("many")

        async def burst(topic: str, count: int, order_key: str | None = None) -> list[Receipt]:
            sends = [
                asyncio.ensure_future(producer.send(Message(topic, b"%d" % number), order_key=order_key))
                for number in range(count)
            ]
            await asyncio.sleep(0)  # so that they linger
            await asyncio.wait_for(producer.flush(), 30)
            return [await send for send in sends]

        def sizes(receipts: list[Receipt]) -> list[int]:
            return sorted(Counter(receipt.queue for receipt in receipts).values())

        receipts = await burst("orders", 100)
        assert sizes(receipts) == [25, 25, 25, 25]
        for part in (receipts[start : start + 25] for start in range(0, 100, 25)):  # each a batch, in order
            first = part[0].queue_offset
            assert [(each.queue, each.queue_offset) for each in part] == [
                (part[0].queue, first + number) for number in range(25)
            ]
        assert sizes(await burst("many", 100)) == [25, 25, 25, 25], "no smaller than is worth a request"
        assert sizes(await burst("orders", 40)) == [40]
        # What is tied to a queue stays together.
        await producer.queues("orders")
        assert sizes(await burst("orders", 100, order_key="k")) == [100]


async def test_a_burst_without_a_route_is_told(running: RunningBroker) -> None:
    options = ProducerOptions(linger_s=0.001, template_topic="")
    async with Producer(running.nameserver_address, group="shop", options=options) as producer:
        sends = [producer.send(Message("nowhere", b"x")) for _ in range(100)]
        results = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 30)
    assert {type(result) for result in results} == {TopicNotFound}


async def test_what_lingers_hears_that_the_client_was_closed(running: RunningBroker) -> None:
    async with Client(running.nameserver_address) as client:
        producer = Producer(client, group="shop", options=ProducerOptions(linger_s=60.0, timeout_s=100.0))
        async with producer:
            await producer.queues("orders")
            sends = [asyncio.ensure_future(producer.send(Message("orders", b"x"))) for _ in range(100)]
            await asyncio.sleep(0)
            linger = producer._linger
            assert linger is not None
            for key in list(linger._waiting):
                linger._flush(key)
            for task in linger._sending:
                task.cancel()  # before it had its first turn, as a closing client does it
            results = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 30)
            assert {type(result) for result in results} == {SendFailed}


async def test_what_lingers_is_sent_on_close(running: RunningBroker) -> None:
    options = ProducerOptions(linger_s=60.0, timeout_s=100.0)
    async with Producer(running.nameserver_address, group="shop", options=options) as producer:
        await producer.queues("orders")
        sends = [
            asyncio.ensure_future(producer.send(Message("orders", b"%d" % n), order_key="k"))
            for n in range(3)
        ]
        sends[1].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cancelled = asyncio.ensure_future(producer.send(Message("orders", b"x"), order_key="k"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
    assert (await sends[0]).queue_offset == 0
    assert (await sends[2]).queue_offset == 1
    assert [m.body for m in await stored(running.nameserver_address, "orders")] == [b"0", b"2"]


# --- what is checked before -------------------------------------------------------------------------


async def test_checked_before_sending(producer: Producer) -> None:
    for message, words in (
        (Message("orders", b""), "no body"),
        (Message("or ders", b"x"), "letters"),
        (Message("x" * 128, b"x"), "128"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "internal to brokers"),
        (Message("orders", b"x" * (4 * 1024 * 1024 + 1)), "4194305"),
        (Message("orders", b"x", properties={"a": "b" * 40_000}), "32767"),
    ):
        with pytest.raises(InvalidMessage, match=words):
            await producer.send(message)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd", ""])
async def test_large_bodies_are_compressed(running: RunningBroker, kind: str) -> None:
    options = ProducerOptions(compression=kind)
    async with Producer(running.nameserver_address, group="shop", options=options) as producer:
        await producer.send(Message("orders", b"ab" * 5000), order_key="k")
        await producer.send(Message("orders", b"a" * 4095), order_key="k")
    first, second = await stored(running.nameserver_address, "orders")
    assert (first.body, second.body) == (b"ab" * 5000, b"a" * 4095)
    assert bool(first.sys_flag & COMPRESSED) == bool(kind)
    assert first.sys_flag >> 8 == {"zlib": 3, "lz4": 1, "zstd": 2, "": 0}[kind]
    assert not second.sys_flag & COMPRESSED


def test_options_that_cannot_be() -> None:
    for wrong in ({"timeout_s": 0}, {"retries": -1}, {"compression": "rar"}, {"window": 0}, {"linger_s": -1}):
        with pytest.raises(OptionError):
            ProducerOptions(**wrong)


async def test_namespaces(running: RunningBroker) -> None:
    options = ClientOptions(running.nameserver_address, namespace="house")
    async with Producer(options, group="shop") as producer:
        receipt = await producer.send(Message("rooms", b"x"))
        assert producer.group == "house%shop"
        assert receipt.queue.topic == "rooms"
        assert await producer.send(Message("rooms", b"y"), queue=receipt.queue)
    found = await stored(running.nameserver_address, "house%rooms")
    assert [m.get("INSTANCE_ID") for m in found] == ["house", "house"]


async def test_sharing_a_client(running: RunningBroker) -> None:
    async with Client(running.nameserver_address) as client:
        async with Producer(client, group="one") as one, Producer(client, group="two") as two:
            await one.send(Message("orders", b"1"))
            await two.send(Message("orders", b"2"))
            assert len(client._peers) == 1
            with pytest.raises(OptionError):
                await Producer(client, group="one").open()
        assert client.is_open
    with pytest.raises(Closed):
        await one.send(Message("orders", b"x"))


async def test_hooks_see_every_message(running: RunningBroker) -> None:
    seen: list[SendContext] = []

    class Watch(SendHook):
        def before_send(self, context: SendContext) -> None:
            context.properties["trace"] = "t1"
            if context.message.body == b"stop":
                raise InvalidMessage("stopped")

        def after_send(self, context: SendContext) -> None:
            seen.append(context)

    async with Producer(running.nameserver_address, group="shop", hooks=[Watch()]) as producer:
        await producer.send(Message("orders", b"1"), order_key="k")
        await producer.send_many([Message("orders", b"2"), Message("orders", b"3")], order_key="k")
        await producer.send_batch([Message("orders", b"4"), Message("orders", b"5")], order_key="k")
        await producer.send_oneway(Message("orders", b"6"), order_key="k")
        with pytest.raises(InvalidMessage, match="stopped"):
            await producer.send(Message("orders", b"stop"))
        with pytest.raises(InvalidMessage):
            await producer.send(Message("orders", b""))
        await producer.send(Message("orders", b"7"), order_key="k")
    found = await stored(running.nameserver_address, "orders")
    assert [m.body for m in found] == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
    assert {m.get("trace") for m in found} == {"t1"}
    assert [c.message.body for c in seen] == [b"1", b"2", b"3", b"4", b"5", b"6", b"", b"7"]
    ids = {m.body: m.msg_id for m in found}
    for context in seen:
        if context.receipt is not None:
            assert ids[context.message.body_bytes()] == context.receipt.msg_id
    assert isinstance(seen[6].error, InvalidMessage)


# --- brokers that fail ------------------------------------------------------------------------------


class Cluster:
    """A name server and brokers that do as they are told."""

    def __init__(self) -> None:
        self.behaviour: dict[str, Callable[[Request[Any]], Any]] = {}
        self.asked: list[tuple[str, SendRequestV2]] = []
        self.servers: dict[str, Server] = {}
        self.routes_asked = 0

    async def add(self, name: str, behaviour: Callable[[Request[Any]], Any]) -> Server:
        handlers = RemotingHandlers()

        def send(request: Request[SendRequestV2]) -> Any:
            self.asked.append((name, request.header))
            return self.behaviour[name](request)

        lane = Lane(name)
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            handlers.add(code, send, SendRequestV2, lane)
        handlers.add(RequestCode.HEART_BEAT, lambda request: Answer(), None, lane)
        handlers.add(RequestCode.UNREGISTER_CLIENT, lambda request: Answer(), None, lane)
        handlers.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.route, None, lane)
        server = Server(handlers, host="127.0.0.1")
        await server.start()
        self.servers[name] = server
        self.behaviour[name] = behaviour
        return server

    def route(self, request: Request[Any]) -> Answer:
        self.routes_asked += 1
        names = [name for name in self.servers if name != "names"]
        route = TopicRoute(
            broker_datas=tuple(
                BrokerData(broker_name=name, cluster="c", broker_addrs={0: self.servers[name].address})
                for name in names
            ),
            queue_datas=tuple(
                QueueData(broker_name=name, perm=6, read_queue_nums=2, write_queue_nums=2) for name in names
            ),
        )
        return Answer(body=route.encode())

    @property
    def brokers_asked(self) -> list[str]:
        return [name for name, _ in self.asked]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.add("names", lambda request: None)
    yield cluster
    for server in cluster.servers.values():
        await server.close()


def takes(request: Request[SendRequestV2]) -> Answer:
    header = SendAnswer(
        msg_id="00" * 16, queue_id=request.header.queue_id, queue_offset=1, transaction_id="T"
    )
    return Answer(header=header)


def refuses(code: int, remark: str = "no") -> Callable[[Request[Any]], Answer]:
    return lambda request: Answer(code=code, remark=remark)


def silent(request: Request[Any]) -> None:
    return None


def hangs_up(request: Request[Any]) -> None:
    request.caller.close("for the test", at_once=True)


def to(cluster: Cluster, **options: Any) -> Producer:
    return Producer(cluster.servers["names"].address, group="shop", options=ProducerOptions(**options))


@pytest.mark.parametrize(
    "fault",
    [
        refuses(ResponseCode.SYSTEM_BUSY),
        refuses(ResponseCode.SERVICE_NOT_AVAILABLE),
        refuses(ResponseCode.SYSTEM_ERROR),
        hangs_up,
    ],
    ids=["busy", "unavailable", "error", "hangs up"],
)
async def test_another_broker_is_tried(cluster: Cluster, fault: Callable[[Request[Any]], Any]) -> None:
    await cluster.add("a", fault)
    await cluster.add("b", takes)
    async with to(cluster, avoid_slow_brokers=False) as producer:
        for _ in range(4):
            receipt = await producer.send(Message("t", b"x"))
            assert receipt.queue.broker == "b"
    assert "a" in cluster.brokers_asked
    # The same message: its id stays.
    failed = next(number for number, name in enumerate(cluster.brokers_asked) if name == "a")
    first, second = cluster.asked[failed][1], cluster.asked[failed + 1][1]
    assert first.properties == second.properties


async def test_many_are_tried_elsewhere_too(cluster: Cluster) -> None:
    await cluster.add("a", refuses(ResponseCode.SYSTEM_BUSY))
    await cluster.add("b", takes)
    async with to(cluster) as producer:
        receipts = await producer.send_many([Message("t", b"%d" % n) for n in range(40)])
    assert {receipt.queue.broker for receipt in receipts} == {"b"}
    assert cluster.brokers_asked.count("a") >= 10, "both brokers take turns"


async def test_many_keep_the_deadline_too(cluster: Cluster) -> None:
    await cluster.add("a", refuses(ResponseCode.SYSTEM_BUSY))
    async with to(cluster, timeout_s=0.5, retries=100, window=8) as producer:
        began = asyncio.get_running_loop().time()
        results: list[Any] = await producer.send_many([Message("t", b"x")] * 8, return_errors=True)
        assert 0.4 < asyncio.get_running_loop().time() - began < 1.5
        assert {type(result) for result in results} == {SendTimeout}
        task = asyncio.create_task(producer.send_many([Message("t", b"x")] * 8))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        asked = len(cluster.asked)
        await asyncio.sleep(0.3)
        assert len(cluster.asked) <= asked + 8, "what was cancelled is not tried for ever"


async def test_a_broker_that_is_gone(cluster: Cluster) -> None:
    await cluster.add("a", takes)
    await cluster.add("b", takes)
    await cluster.servers["a"].close()
    async with to(cluster) as producer:
        receipts = [await producer.send(Message("t", b"x")) for _ in range(6)]
        assert {receipt.queue.broker for receipt in receipts} == {"b"}
        assert not producer._sender.health.is_available("a")
        assert producer._sender.health.is_available("b")
        assert "'a'" in repr(producer._sender.health)


async def test_the_deadline_is_kept(cluster: Cluster) -> None:
    await cluster.add("a", silent)
    async with to(cluster, timeout_s=0.3) as producer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("t", b"x"))
        assert 0.25 < loop.time() - began < 1.0
        assert caught.value.may_be_stored
        assert isinstance(caught.value.tried[0][1], RequestTimeout)
        assert "duplicates" in caught.value.next_step
        results: list[Any] = await producer.send_many([Message("t", b"x")], return_errors=True)
        assert isinstance(results[0], SendTimeout)
        assert results[0].may_be_stored


async def test_a_short_try_leaves_time_for_another_broker(cluster: Cluster) -> None:
    await cluster.add("a", silent)
    await cluster.add("b", takes)
    async with to(cluster, timeout_s=5.0, try_timeout_s=0.2) as producer:
        for _ in range(3):
            assert (await producer.send(Message("t", b"x"))).queue.broker == "b"
    assert cluster.brokers_asked.count("a") == 1, "a slow broker is left alone for a while"


async def test_tries_are_counted(cluster: Cluster) -> None:
    await cluster.add("a", refuses(ResponseCode.SYSTEM_BUSY, "too much"))
    async with to(cluster, retries=1) as producer:
        with pytest.raises(SendFailed, match="too much") as caught:
            await producer.send(Message("t", b"x"))
    assert [broker for broker, _ in caught.value.tried] == ["a", "a"]
    assert isinstance(caught.value.tried[0][1], BrokerBusy)
    assert caught.value.retriable
    assert not caught.value.may_be_stored


async def test_what_no_try_can_mend_is_raised_at_once(cluster: Cluster) -> None:
    await cluster.add("a", refuses(ResponseCode.MESSAGE_ILLEGAL, "too long"))
    await cluster.add("b", refuses(ResponseCode.MESSAGE_ILLEGAL, "too long"))
    async with to(cluster) as producer:
        with pytest.raises(MessageRefused, match="too long"):
            await producer.send(Message("t", b"x"))
    assert len(cluster.asked) == 1


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (ResponseCode.SYSTEM_ERROR, "org.apache.rocketmq.acl.common.AclException: no"),  # 4.x
        (ResponseCode.NO_PERMISSION, "check signature failed."),
    ],
)
async def test_whom_one_broker_does_not_let_in_does_not_ask_the_next(
    cluster: Cluster, code: ResponseCode, remark: str
) -> None:
    for name in ("a", "b"):
        await cluster.add(name, refuses(code, remark))
    async with to(cluster) as producer:
        with pytest.raises(AccessDenied, match="Give the keys of a user") as caught:
            await producer.send(Message("t", b"x"))
    assert not caught.value.retriable
    assert len(cluster.asked) == 1


async def test_a_broker_that_may_not_be_written_leaves_others_to_ask(cluster: Cluster) -> None:
    await cluster.add(
        "a", refuses(ResponseCode.NO_PERMISSION, "the broker[1.2.3.4] sending message is forbidden")
    )
    await cluster.add("b", takes)
    async with to(cluster) as producer:
        for _ in range(4):
            assert (await producer.send(Message("t", b"x"))).queue.broker == "b"
    cluster.behaviour["b"] = cluster.behaviour["a"]
    async with to(cluster) as producer:
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("t", b"x"))
    assert all(isinstance(error, NotAllowedThere) for _, error in caught.value.tried)
    assert "settings of the topic" in caught.value.next_step


async def test_tied_to_a_queue_it_is_not_repeated_if_it_may_be_stored(cluster: Cluster) -> None:
    await cluster.add("a", hangs_up)
    async with to(cluster) as producer:
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("t", b"x"), order_key="k")
        assert caught.value.may_be_stored
        assert len(cluster.asked) == 1
        cluster.behaviour["a"] = lambda request: (
            refuses(ResponseCode.SYSTEM_BUSY)(request) if len(cluster.asked) < 3 else takes(request)
        )
        await producer.send(Message("t", b"x"), order_key="k")
        assert len({header.queue_id for _, header in cluster.asked}) == 1


async def test_go_away_means_a_new_connection(cluster: Cluster) -> None:
    peers: list[Any] = []

    def leaves_once(request: Request[Any]) -> Answer:
        peers.append(request.caller)
        return refuses(ResponseCode.GO_AWAY)(request) if len(peers) == 1 else takes(request)

    await cluster.add("a", leaves_once)
    async with to(cluster, retries=0) as producer:
        assert (await producer.send(Message("t", b"x"))).ok
        assert peers[0] is not peers[1]
        await wait_for(lambda: peers[0].is_closed)


async def test_stored_but_not_safe_is_a_receipt(cluster: Cluster) -> None:
    def half_safe(request: Request[SendRequestV2]) -> Answer:
        answer = takes(request)
        answer.code = ResponseCode.SLAVE_NOT_AVAILABLE
        return answer

    await cluster.add("a", half_safe)
    await cluster.add("b", takes)
    async with to(cluster) as producer:
        queues = await producer.queues("t")
        receipt = await producer.send(Message("t", b"x"), queue=queues[0])
        assert receipt.status is SendStatus.SLAVE_NOT_AVAILABLE
        assert not receipt.ok
    async with to(cluster, retry_not_ok=True) as producer:
        for _ in range(4):
            assert (await producer.send(Message("t", b"x"))).queue.broker == "b"
        # Where nobody does better, it is stored all the same.
        assert not (await producer.send(Message("t", b"x"), queue=queues[0])).ok
        cluster.behaviour["b"] = half_safe
        assert (await producer.send(Message("t", b"x"))).status is SendStatus.SLAVE_NOT_AVAILABLE


async def test_cancelled_sends_leave_the_producer_usable(cluster: Cluster) -> None:
    await cluster.add("a", silent)
    async with to(cluster) as producer:
        sends: list[asyncio.Task[Any]] = [
            asyncio.create_task(producer.send(Message("t", b"x"))) for _ in range(5)
        ]
        sends.append(asyncio.create_task(producer.send_many([Message("t", b"x") for _ in range(5)])))
        await wait_for(lambda: len(cluster.asked) == 10)
        for task in sends:
            task.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        cluster.behaviour["a"] = takes
        assert (await producer.send(Message("t", b"y"))).ok


async def test_no_route_is_raised_as_such(running: RunningBroker, unused_tcp_port: int) -> None:
    async with Producer(f"127.0.0.1:{unused_tcp_port}", group="shop") as producer:
        with pytest.raises(NoRoute):
            await producer.send(Message("orders", b"x"))
        results: list[Any] = await producer.send_many([Message("orders", b"x")], return_errors=True)
        assert isinstance(results[0], NoRoute)


async def test_all_brokers_unreachable(cluster: Cluster) -> None:
    await cluster.add("a", takes)
    await cluster.servers["a"].close()
    async with to(cluster, timeout_s=1.0) as producer:
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("t", b"x"))
        assert isinstance(caught.value.tried[-1][1], ConnectFailed)
        assert not caught.value.may_be_stored


async def test_a_changed_route_is_followed(cluster: Cluster) -> None:
    await cluster.add("a", takes)
    async with to(cluster) as producer:
        await producer.send(Message("t", b"x"))
        await cluster.add("b", takes)
        await producer.client.refresh_routes()
        receipts = await producer.send_many([Message("t", b"x") for _ in range(8)])
        assert {receipt.queue.broker for receipt in receipts} == {"a", "b"}


async def test_a_signed_request_takes_the_long_way(cluster: Cluster) -> None:
    await cluster.add("a", takes)
    options = ClientOptions(cluster.servers["names"].address, access_key="me", secret_key="12345678")
    seen: list[dict[str, str]] = []

    def look(request: Request[Any]) -> Answer:
        seen.append(request.fields)
        return takes(request)

    cluster.behaviour["a"] = look
    async with Producer(options, group="shop") as producer:
        await producer.send(Message("t", b"x"))
        await producer.send_many([Message("t", b"x")])
    assert all(fields["AccessKey"] == "me" and fields["Signature"] for fields in seen)


# --- delays -----------------------------------------------------------------------------------------


async def test_delayed_by_level_and_by_time(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop") as producer:
        began = asyncio.get_running_loop().time()
        await producer.send(Message("orders", b"level", delay_level=1), order_key="k")
        await producer.send(Message("orders", b"timer", delay=1.5), order_key="k")
        assert await stored(running.nameserver_address, "orders") == []
        async with asyncio.timeout(10):
            while len(found := await stored(running.nameserver_address, "orders")) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert {m.body for m in found} == {b"level", b"timer"}
        assert asyncio.get_running_loop().time() - began >= 0.9


async def test_recall() -> None:
    async with (
        running_broker(recall=True) as running,
        Producer(running.nameserver_address, group="shop") as producer,
    ):
        await create(running, "orders", 1)
        receipt = await producer.send(Message("orders", b"later", delay=60))
        assert receipt.recall_handle is not None
        assert await producer.recall("orders", receipt.recall_handle) == receipt.msg_id
        with pytest.raises(InvalidMessage, match="cannot be read"):
            await producer.recall("orders", "nonsense")


async def test_a_topic_made_meanwhile_with_fewer_queues_than_assumed(running: RunningBroker) -> None:
    """As a retry topic that its broker has just made, and that name servers have not heard of."""
    async with Producer(running.nameserver_address, group="shop") as producer:
        assumed = await producer._sender.publishing("made-elsewhere")
        assert assumed.route.assumed
        assert len(assumed.targets) > 1
        await create(running, "made-elsewhere", 1)
        for number in range(2 * len(assumed.targets)):
            receipt = await producer.send(Message("made-elsewhere", b"%d" % number))
            assert receipt.queue.queue_id == 0


async def test_many_to_a_topic_made_meanwhile(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop") as producer:
        assumed = await producer._sender.publishing("made-for-many")
        assert assumed.route.assumed
        await create(running, "made-for-many", 1)
        receipts = await producer.send_many(Message("made-for-many", b"%d" % number) for number in range(20))
        assert {receipt.queue.queue_id for receipt in receipts} == {0}
