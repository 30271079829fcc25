"""What clients decide before they call, without any server."""

from __future__ import annotations

import pytest

from kerolox.client.calls.health import BrokerHealth
from kerolox.client.calls.nameservers import NameServerList
from kerolox.client.calls.outgoing import Target
from kerolox.client.calls.retries import NAMESERVERS, QUEUES, RefreshGap, Retries
from kerolox.client.calls.routes import Route, RouteTable, address_of
from kerolox.client.calls.sends import Publishing, was_mistaken
from kerolox.client.calls.steps import Ask, awaited, in_turn
from kerolox.client.errors import (
    AccessDenied,
    BrokerBusy,
    BrokerNotRegistered,
    NameServerStarting,
    NameServerUnreachable,
    NoNameServer,
    NotANameServer,
    RoutesNotKnownYet,
    TopicNotFound,
)
from kerolox.errors import ConnectFailed, ConnectionLost, KeroloxError, ProtocolError, RequestFailed
from kerolox.protocol.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRoute
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.route import NOT_READY
from kerolox.testing.clock import ManualClock

Answer = Command | KeroloxError

ROUTE = TopicRoute(
    queue_datas=tuple(
        QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=6) for name in "ab"
    ),
    broker_datas=tuple(
        BrokerData(broker_name=name, broker_addrs={0: f"{name}:1", 1: f"{name}:2"}) for name in "ab"
    ),
)
BROKERS = ClusterInfo(broker_addr_table={"a": BrokerData(broker_name="a")})


class Servers:
    """Name servers by address: what each answers to a code. Takes down who was asked."""

    def __init__(self, **answers: Answer | dict[int, Answer]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def ask(self, asked: Ask) -> Command:
        self.asked.append(asked.address)
        answer = self.answers[asked.address]
        if isinstance(answer, dict):
            answer = answer[asked.code]
        if isinstance(answer, KeroloxError):
            raise answer
        return answer


def missing() -> Command:
    return Command(ResponseCode.TOPIC_NOT_EXIST, remark="no route")


def starting() -> Command:
    return Command(ResponseCode.SYSTEM_ERROR, remark=NOT_READY)


def route(data: TopicRoute = ROUTE) -> Command:
    return Command(0, body=data.encode())


def fetched(servers: Servers, *addresses: str, expected: bool = False) -> tuple[Route, NameServerList]:
    known = NameServerList(list(addresses))
    return in_turn(RouteTable(known).find("orders", expected=expected), servers.ask), known


@pytest.mark.parametrize("first", [ConnectFailed("x", "gone"), starting()], ids=["away", "starting"])
def test_the_next_name_server_is_asked_and_preferred(first: Answer) -> None:
    servers = Servers(x=first, y=route())
    found, known = fetched(servers, "x", "y")
    assert len(found.writable) == 4
    assert (servers.asked, known.addresses) == (["x", "y"], ["y", "x"])


def test_one_that_does_not_know_a_known_topic_is_not_believed() -> None:
    servers = Servers(x={RequestCode.GET_ROUTEINFO_BY_TOPIC: missing()}, y=route())
    assert fetched(servers, "x", "y", expected=True)[1].addresses == ["y", "x"]
    servers = Servers(
        x={RequestCode.GET_ROUTEINFO_BY_TOPIC: missing(), RequestCode.GET_BROKER_CLUSTER_INFO: route(BROKERS)}
    )
    with pytest.raises(TopicNotFound) as told:
        fetched(servers, "x", "y")
    assert (servers.asked, told.value.retriable) == (["x", "x"], False)


@pytest.mark.parametrize(
    ("answer", "info", "error"),
    [
        (ConnectFailed("x", "gone"), None, NameServerUnreachable),
        (ProtocolError("garbage"), None, NotANameServer),
        (Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), None, NotANameServer),
        (starting(), None, RoutesNotKnownYet),
        (Command(ResponseCode.NO_PERMISSION, remark="no"), None, AccessDenied),
        (missing(), Command(0, body=ClusterInfo().encode()), BrokerNotRegistered),
        (missing(), ConnectionLost("x", "gone"), NameServerUnreachable),
        (missing(), starting(), RoutesNotKnownYet),
        (missing(), Command(ResponseCode.SYSTEM_ERROR), TopicNotFound),
    ],
)
async def test_why_there_is_no_route(answer: Answer, info: Answer | None, error: type[KeroloxError]) -> None:
    table: dict[int, Answer] = {RequestCode.GET_ROUTEINFO_BY_TOPIC: answer}
    if info is not None:
        table[RequestCode.GET_BROKER_CLUSTER_INFO] = info
    servers = Servers(x=table)
    with pytest.raises(error):
        fetched(servers, "x")

    async def ask(asked: Ask) -> Command:
        return servers.ask(asked)

    with pytest.raises(error):
        await awaited(RouteTable(NameServerList(["x"])).find("orders"), ask)


def test_none_of_several_answers() -> None:
    servers = Servers(x=ConnectFailed("x", "gone"), y=ConnectionLost("y", "gone"))
    with pytest.raises(NoNameServer, match=r"x: .*y: ") as told:
        in_turn(NameServerList(["x", "y"]).ask(RequestCode.GET_BROKER_CLUSTER_INFO), servers.ask)
    assert told.value.retriable


def test_which_member_of_a_broker_is_asked() -> None:
    both = {0: "master", 2: "slave"}
    assert (address_of(both), address_of(both, 2), address_of(both, 1)) == ("master", "slave", "slave")
    assert address_of({2: "slave"}) == "slave"
    assert address_of({2: "slave"}, exact=True) is None
    assert address_of({}) is None


# --- retries ----------------------------------------------------------------------------------------

BUSY = BrokerBusy(ResponseCode.SYSTEM_BUSY, "busy")
LOST = ConnectionLost("a:1", "gone")
AWAY = ConnectFailed("a:1", "gone")
DENIED = AccessDenied(ResponseCode.NO_PERMISSION, "no")
ABSENT = TopicNotFound("orders", "x")
BACK_SOON = TopicNotFound("orders", "x", was_known=True)
UNREACHABLE = NameServerUnreachable("orders", ["x"], "gone")
STARTING = NameServerStarting(ResponseCode.SYSTEM_ERROR, NOT_READY)


def test_which_errors_are_worth_another_try() -> None:
    """By policy; the reasons are in its table."""
    helped = {
        name: [error for error in (BUSY, LOST, AWAY, DENIED, BACK_SOON, UNREACHABLE) if policy.helps(error)]
        for name, policy in {"nameservers": NAMESERVERS, "queues": QUEUES}.items()
    }
    assert helped == {"nameservers": [BACK_SOON], "queues": [BUSY, LOST, AWAY, BACK_SOON, UNREACHABLE]}
    assert NAMESERVERS.helps(STARTING)


class Time(ManualClock):
    now_s = 5.0

    def monotonic_s(self) -> float:
        return self.now_s


def pauses(retries: Retries, clock: Time, error: KeroloxError) -> list[float]:
    """How long it waits between tries, until the error is raised."""
    found: list[float] = []

    def try_for_ever() -> None:
        while True:
            found.append(round(retries.pause_after(error), 3))
            clock.now_s += found[-1]

    with pytest.raises(type(error)):
        try_for_ever()
    return found


def test_pauses_double_until_it_is_over() -> None:
    clock = Time()
    assert pauses(Retries(QUEUES, clock.monotonic_s, tries=4), clock, LOST) == [0.1, 0.2, 0.4]
    patient = Retries(QUEUES, clock.monotonic_s, patience_s=5.0)
    clock.now_s += 1000  # only the first failure starts the clock
    assert pauses(patient, clock, LOST) == [0.1, 0.2, 0.4, 0.8, 1.6, 1.9]
    until = Retries(NAMESERVERS, clock.monotonic_s, deadline_s=clock.now_s + 0.25)
    assert pauses(until, clock, BACK_SOON) == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.1])
    assert pauses(Retries(QUEUES, clock.monotonic_s, tries=9), clock, DENIED) == []


def test_a_topic_nobody_has_seen_is_asked_about_for_some_seconds_over_sockets_only() -> None:
    clock = Time()
    assert pauses(Retries(QUEUES, clock.monotonic_s, patience_s=60.0), clock, ABSENT)[-1] == 1.6
    assert pauses(Retries(NAMESERVERS, clock.monotonic_s, patience_s=60.0), clock, ABSENT) == []


def test_a_route_is_refreshed_at_once_then_less_often_and_after_quiet_times_at_once_again() -> None:
    clock = Time()
    gap = RefreshGap(clock.monotonic_s)
    assert [gap.is_over("a"), gap.is_over("a"), gap.is_over("b")] == [True, False, True]
    began_s = clock.now_s
    asked = []
    while clock.now_s < began_s + 4.9:  # somebody fails every millisecond
        clock.now_s += 0.001
        if gap.is_over("a"):
            asked.append(clock.now_s - began_s)
    assert asked == pytest.approx([0.01, 0.03, 0.07, 0.15, 0.31, 0.63, 1.27, 2.27, 3.27, 4.27], abs=0.02)
    clock.now_s += 5
    assert gap.is_over("a")
    clock.now_s += 0.011
    assert gap.is_over("a")


# --- sends ------------------------------------------------------------------------------------------


def publishing(*, assumed: bool = False) -> Publishing:
    return Publishing(
        Route("orders", ROUTE, assumed=assumed), lambda queue, address: Target(queue, address, "g"), 0
    )


def test_untried_brokers_come_first_then_healthy_ones_then_those_with_room() -> None:
    health = BrokerHealth(ManualClock())
    queues = publishing()
    assert {queues.next((), health).address for _ in range(4)} == {"a:1", "b:1"}
    assert {queues.next(["a"], health).address for _ in range(4)} == {"b:1"}
    assert {queues.next((), health, lambda target: target.queue.broker == "a").address for _ in range(4)} == {
        "a:1"
    }
    health.failed("a")
    assert {queues.next((), health).address for _ in range(4)} == {"b:1"}
    assert {queues.next(["b"], health).address for _ in range(4)} == {"a:1"}, "untried goes before healthy"
    assert {queues.next(["a", "b"], health).address for _ in range(4)} == {"b:1"}
    assert queues.brokers == {"a", "b"}


def test_a_queue_that_was_assumed() -> None:
    wrong_queue = RequestFailed(ResponseCode.INVALID_PARAMETER, "request queueId[3] is illegal")
    assumed, real = publishing(assumed=True), publishing()
    (first, *_) = assumed.targets
    assert was_mistaken(assumed, first, wrong_queue)
    assert not was_mistaken(real, first, wrong_queue)
    beyond = Target(first.queue._replace(queue_id=9), first.address, "g")
    assert was_mistaken(real, beyond, wrong_queue), "another message has found it out before"
    assert not was_mistaken(assumed, first, BUSY)
