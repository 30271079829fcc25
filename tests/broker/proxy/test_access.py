"""Access control at the gRPC port: every call proves its user, and a client id gives no rights."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest

from kerolox.access.failures import FREE
from kerolox.clock import SYSTEM_CLOCK
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.grpc.messages import ClientType, Code, Resolution, make
from kerolox.proxy.renewals import Renewals
from kerolox.proxy.routes import read_address
from kerolox.testing.access import ADMIN, secured

from .grpc_kit import GrpcClient, Served, consumer_settings, grpc_broker, ok, producer_settings, resource

DATE = "20261115T194301Z"
TOPIC, GROUP = "Orders", "G"
USERS = {"pub": [("Topic:Orders", "Pub")], "sub": [("Topic:Orders", "Sub"), ("Group:G", "Sub")],
         "alien": [("Topic:Others", "Pub"), ("Group:O", "Sub")]}  # fmt: skip
SECRET = "secret of {}"


def signed(
    user: str, secret: str, date: str = DATE, *, form: str = "{user}", upper: bool = False
) -> dict[str, Any]:
    """Return the metadata of a call that a user signs."""
    signature = hmac.new(secret.encode(), date.encode(), "sha1").hexdigest()
    credential = form.format(user=user)
    text = f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature="
    return {
        "x-mq-date-time": date,
        "authorization": text + (signature.upper() if upper else signature),
    }


def of(user: str) -> dict[str, Any]:
    return signed(user, SECRET.format(user))


BOSS = signed(ADMIN.access_key, ADMIN.secret_key)
ACCEPTED = {
    "right": BOSS,
    "upper case": signed(ADMIN.access_key, ADMIN.secret_key, upper=True),
    "Go's credential": signed(ADMIN.access_key, ADMIN.secret_key, form="{user}//Rocketmq"),
    "Rust's date": signed(ADMIN.access_key, ADMIN.secret_key, "2026-11-15T19:43:01.000+08:00"),
}
REFUSED = {
    "none": {},
    "wrong": signed(ADMIN.access_key, "guessed"),
    "no such user": signed("nobody", "x"),
    "empty": signed("", ""),
    "no date": {"authorization": BOSS["authorization"]},
    "another date": {**BOSS, "x-mq-date-time": "20261115T194302Z"},
    "malformed": {"x-mq-date-time": DATE, "authorization": "MQv2-HMAC-SHA1 Credential"},
    "another scheme": {"x-mq-date-time": DATE, "authorization": "Basic YWRtaW46eA=="},
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with grpc_broker(directory=tmp_path, **secured()) as served:
        book = served.broker.access.book
        for user, rights in USERS.items():
            book.create_user(bodies.User(username=user, password=SECRET.format(user)))
            entries = tuple(
                bodies.AclEntry(actions=(action,), decision="Allow", resource=name) for name, action in rights
            )
            book.merge_rules(f"User:{user}", bodies.Acl(policies=(bodies.AclPolicy(entries=entries),)))
        yield served


async def with_topic(served: Served, kind: str = "NORMAL") -> GrpcClient:
    """Create the topic, and return a client that may do everything."""
    config = TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)
    served.broker.tables.topics.put(msgspec.structs.replace(config, attributes={"message.type": kind}))
    return served.client(metadata=BOSS)


HANDLE = "0 1 60000 0 0 broker-a 0 0 0"
Doing = Callable[[GrpcClient], Awaitable[Any]]


async def route(client: GrpcClient) -> Any:
    return await client.call("QueryRoute", topic=resource(TOPIC), endpoints=endpoints())


async def assignment(client: GrpcClient) -> Any:
    return await client.call(
        "QueryAssignment", topic=resource(TOPIC), group=resource(GROUP), endpoints=endpoints()
    )


def endpoints() -> Any:
    return read_address("broker.example:8081")


async def received(client: GrpcClient) -> Any:
    return (await client.receive(TOPIC, GROUP, polling_ms=5000, timeout=6))[0]


async def acked(client: GrpcClient) -> Any:
    entry = {"message_id": "m", "receipt_handle": HANDLE}
    return await client.call(
        "AckMessage", topic=resource(TOPIC), group=resource(GROUP), entries=[make("AckMessageEntry", **entry)]
    )


SENDING: dict[str, Doing] = {
    "SendMessage": lambda client: client.send(TOPIC),
    "RecallMessage": lambda client: client.call("RecallMessage", topic=resource(TOPIC), recall_handle="x"),
    "EndTransaction": lambda client: client.call(
        "EndTransaction", topic=resource(TOPIC), transaction_id="t", resolution=Resolution.COMMIT
    ),
}
CONSUMING: dict[str, Doing] = {
    "QueryAssignment": assignment,
    "ReceiveMessage": received,
    "AckMessage": acked,
    "ChangeInvisibleDuration": lambda client: client.call(
        "ChangeInvisibleDuration", topic=resource(TOPIC), group=resource(GROUP), receipt_handle=HANDLE
    ),
    "ForwardMessageToDeadLetterQueue": lambda client: client.call(
        "ForwardMessageToDeadLetterQueue", topic=resource(TOPIC), group=resource(GROUP), receipt_handle=HANDLE
    ),
    "Heartbeat": lambda client: client.call(
        "Heartbeat", group=resource(GROUP), client_type=ClientType.PUSH_CONSUMER
    ),
    "NotifyClientTermination": lambda client: client.call("NotifyClientTermination", group=resource(GROUP)),
}
ALL: dict[str, Doing] = {"QueryRoute": route, **SENDING, **CONSUMING}


# --- who it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
async def test_every_call_asks_for_a_known_user(served: Served, name: str) -> None:
    await with_topic(served)
    for metadata in ({}, REFUSED["wrong"]):
        answer = await ALL[name](served.client(metadata=metadata))
        assert answer.status.code == Code.UNAUTHORIZED, answer
        assert "access denied" in answer.status.message


@pytest.mark.parametrize("form", ACCEPTED)
async def test_forms_of_credentials(served: Served, form: str) -> None:
    await with_topic(served)
    ok(await served.client(metadata=ACCEPTED[form]).send(TOPIC))


@pytest.mark.parametrize("form", REFUSED)
async def test_credentials_that_prove_nothing(served: Served, form: str) -> None:
    await with_topic(served)
    answer = await served.client(metadata=REFUSED[form]).send(TOPIC)
    assert answer.status.code == Code.UNAUTHORIZED


async def test_disabled_users_are_not_known(served: Served) -> None:
    await with_topic(served)
    ok(await served.client(metadata=of("pub")).send(TOPIC))
    served.broker.access.book.update_user(bodies.User(username="pub", user_status="disable"))
    answer = await served.client(metadata=of("pub")).send(TOPIC)
    assert answer.status.code == Code.UNAUTHORIZED


async def test_without_authentication_credentials_are_ignored() -> None:
    async with grpc_broker() as served:
        await served.topic(TOPIC)
        ok(await served.client(metadata=REFUSED["wrong"]).send(TOPIC))


async def test_telemetry_ends_with_the_reason(served: Served) -> None:
    await with_topic(served)
    stream = served.client(metadata=REFUSED["wrong"]).telemetry()
    refused = await stream.settle(producer_settings(TOPIC))
    assert refused.status.code == Code.UNAUTHORIZED
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await stream.hear()
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# --- what it may do -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SENDING)
async def test_calls_of_producers_need_the_right_to_send(served: Served, name: str) -> None:
    await with_topic(served, "MIXED")
    for user, may in {"pub": True, "sub": False, "alien": False}.items():
        answer = await ALL[name](served.client(metadata=of(user)))
        assert (answer.status.code != Code.UNAUTHORIZED) is may, (user, answer)


@pytest.mark.parametrize("name", CONSUMING)
async def test_calls_of_consumers_need_the_right_to_consume(served: Served, name: str) -> None:
    boss = await with_topic(served)
    ok(await boss.send(TOPIC))
    for user, may in {"sub": True, "pub": False, "alien": False}.items():
        answer = await ALL[name](served.client(metadata=of(user)))
        assert (answer.status.code != Code.UNAUTHORIZED) is may, (user, answer)


async def test_routes_are_seen_by_those_who_send_or_consume(served: Served) -> None:
    await with_topic(served)
    for user, code in {"pub": Code.OK, "sub": Code.OK, "alien": Code.UNAUTHORIZED}.items():
        assert (await route(served.client(metadata=of(user)))).status.code == code


async def test_strangers_do_not_learn_which_topics_exist(served: Served) -> None:
    """The answers for a topic that exists and one that does not are the same but for its name."""
    client = served.client(metadata=of("alien"))
    before = {name: (await doing(client)).status for name, doing in ALL.items()}
    await with_topic(served, "FIFO")
    after = {name: (await doing(client)).status for name, doing in ALL.items()}
    assert before == after


@pytest.mark.parametrize(
    ("settings", "user", "code"),
    [
        (producer_settings(TOPIC), "pub", Code.OK),
        (producer_settings(TOPIC), "sub", Code.UNAUTHORIZED),
        (producer_settings(TOPIC, "Others"), "pub", Code.UNAUTHORIZED),
        (consumer_settings(GROUP, TOPIC), "sub", Code.OK),
        (consumer_settings(GROUP, "Others"), "sub", Code.UNAUTHORIZED),
        (consumer_settings("O", TOPIC), "sub", Code.UNAUTHORIZED),
        (consumer_settings(GROUP, TOPIC), "pub", Code.UNAUTHORIZED),
    ],
)  # fmt: skip
async def test_settings_need_the_rights_for_what_they_name(
    served: Served, settings: Any, user: str, code: Code
) -> None:
    await with_topic(served)
    stream = served.client(metadata=of(user)).telemetry()
    assert (await stream.settle(settings)).status.code == code
    stream.close()


# --- the id of a client --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata", [{}, REFUSED["wrong"], of("alien")], ids=["none", "wrong", "another user"]
)
async def test_a_clients_id_gives_nothing_to_others(
    served: Served, metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user with the id of a consumer neither ends nor takes over what the consumer has."""
    given_back: list[object] = []
    monkeypatch.setattr(Renewals, "gone", _noting(Renewals.gone, given_back))
    boss = await with_topic(served)
    consumer = served.client(metadata=of("sub"))
    stream = consumer.telemetry()
    ok(await stream.settle(consumer_settings(GROUP, TOPIC)))
    assert await consumer.messages(TOPIC, GROUP, polling_ms=5000, timeout=6) == []
    ok(await boss.send(TOPIC))
    (message,) = await consumer.messages(TOPIC, GROUP, auto_renew=True)

    thief = served.client(client_id=consumer.client_id, metadata=metadata)
    for answer in (
        await thief.ack(TOPIC, GROUP, message),
        await thief.change(TOPIC, GROUP, message, 0),
        await thief.call("Heartbeat", group=resource(GROUP), client_type=ClientType.PUSH_CONSUMER),
        await thief.call("NotifyClientTermination", group=resource(GROUP)),
    ):
        assert answer.status.code == Code.UNAUTHORIZED
    takeover = thief.telemetry()
    assert (await takeover.settle(consumer_settings(GROUP, TOPIC))).status.code == Code.UNAUTHORIZED

    assert given_back == []
    ok(await stream.settle(consumer_settings(GROUP, TOPIC)))  # the stream is still the client's
    ok(await consumer.ack(TOPIC, GROUP, message))  # and so is the message
    stream.close()


def _noting(real: Callable[..., None], noted: list[object]) -> Callable[..., None]:
    def gone(self: Renewals, client: Any) -> None:
        noted.append(client)
        real(self, client)

    return gone


# --- failures -------------------------------------------------------------------------------------------


async def test_failures_are_in_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kerolox.access.audit")
    await with_topic(served)
    await served.client(metadata=REFUSED["wrong"]).send(TOPIC)
    await served.client(metadata=of("sub")).send(TOPIC)
    assert "not_known request=SEND_MESSAGE_V2 from=127.0.0.1:" in caplog.text
    assert f"name='{ADMIN.access_key}' why='wrong signature'" in caplog.text
    assert "refused request=SEND_MESSAGE_V2 from=127.0.0.1:" in caplog.text
    assert "user='sub'" in caplog.text


async def test_many_failures_are_answered_late(served: Served) -> None:
    await with_topic(served)
    stranger = served.client(metadata=REFUSED["wrong"])
    for _ in range(FREE):
        await stranger.send(TOPIC)
    before_s = SYSTEM_CLOCK.monotonic_s()
    for _ in range(3):
        assert (await stranger.send(TOPIC)).status.code == Code.UNAUTHORIZED
    assert SYSTEM_CLOCK.monotonic_s() - before_s >= 0.1 + 0.2 + 0.4


async def test_a_flood_of_failures_ends_its_connection_only(served: Served) -> None:
    """The connection that guesses is closed; the client whose id it uses goes on."""
    boss = await with_topic(served)
    ok(await boss.send(TOPIC))
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(served.broker.grpc_address, options=options) as channel:
        guessing = GrpcClient(channel, client_id=boss.client_id, metadata=REFUSED["wrong"])
        ends = await asyncio.gather(*(guessing.send(TOPIC) for _ in range(100)), return_exceptions=True)
    assert any(isinstance(end, grpc.aio.AioRpcError) for end in ends)
    ok(await boss.send(TOPIC))
