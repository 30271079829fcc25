from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.broker.members.members import ConnectedClient, ConsumerMembers
from kerolox.front.caller import CallerEvents
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.peer import Peer
from kerolox.protocol.bodies.heartbeat import MessageModel, SubscriptionData
from kerolox.protocol.codes import Language
from kerolox.protocol.frame import JSON, pack_frame
from tests.broker.group_kit import Part, clients, consumer, running, until, wants


@pytest.fixture
async def part(tmp_path: Path) -> AsyncIterator[Part]:
    async with running(tmp_path) as part:
        yield part


# --- what a group has subscribed ---------------------------------------------------------------------


def test_of_a_topic_the_newest_subscription_stays() -> None:
    group = ConsumerMembers("g")
    assert group.subscribe([wants("t", "a", 5)])
    assert not group.subscribe([wants("t", "b", 4)])
    assert group.subscription("t") == wants("t", "a", 5)
    assert not group.subscribe([wants("t", "b", 5)])  # of two equally new ones the first
    assert group.subscription("t") == wants("t", "a", 5)
    assert not group.subscribe([wants("t", "c", 6)])  # newer, but the topics are the same
    assert group.subscription("t") == wants("t", "c", 6)


def test_topics_not_listed_any_more_are_dropped() -> None:
    group = ConsumerMembers("g")
    group.subscribe([wants("t1"), wants("t2")])
    assert group.subscribe([wants("t2")])
    assert set(group.subscriptions) == {"t2"}
    assert group.subscribe([])
    assert group.subscription("t2") is None


# --- who is there, without connections -----------------------------------------------------------------


def peer(address: str = "10.0.0.1:5555") -> Peer:
    made = Peer(RemotingHandlers(), CallerEvents())
    made.address = address
    return made


async def test_producers_take_turns_and_those_that_read_come_first(tmp_path: Path) -> None:
    members = Part(tmp_path).members
    one, two, three = peer("a:1"), peer("b:1"), peer("c:1")
    for number, connection in enumerate((one, two, three)):
        assert members.join_producers("p", ConnectedClient(connection, f"c{number}"))
    assert not members.join_producers("p", ConnectedClient(one, "c0"))
    assert {members.pick_producer("p") for _ in range(3)} == {one, two, three}
    two.stalled_since_s = 1.0
    assert {members.pick_producer("p") for _ in range(9)} == {one, three}
    one.close("gone")
    three.close("gone")
    assert members.pick_producer("p") is two
    two.close("gone")
    assert members.pick_producer("p") is None
    assert members.pick_producer("unknown") is None


async def test_a_producer_is_found_by_its_id_on_its_newest_connection(tmp_path: Path) -> None:
    members = Part(tmp_path).members
    old, new = peer("a:1"), peer("a:2")
    members.join_producers("p", ConnectedClient(old, "c"))
    members.join_producers("p", ConnectedClient(new, "c"))
    assert members.producer("c") is new
    members.closed(new, "gone")
    assert members.producer("c") is old
    members.join_producers("q", ConnectedClient(old, "c"))
    members.leave_producers("p", old)
    assert members.producer("c") is old  # still there, in another group
    members.leave_producers("q", old)
    assert members.producer("c") is None
    assert members.producers == {}


async def test_an_id_is_of_the_user_who_had_it_first(tmp_path: Path) -> None:
    """Replies go to the client that asked, by its id, which whoever reads the question knows."""
    members = Part(tmp_path).members
    own, thief, again = peer("a:1"), peer("b:1"), peer("a:2")
    members.join_producers("p", ConnectedClient(own, "c", user="alice"))
    members.join_producers("p", ConnectedClient(thief, "c", user="mallory"))
    members.join_producers("q", ConnectedClient(own, "c", user="alice"))
    assert members.producer("c") is own
    members.join_producers("p", ConnectedClient(again, "c", user="alice"))
    assert members.producer("c") is again
    members.closed(own, "gone")
    members.closed(again, "gone")
    assert members.producer("c") is None
    members.join_producers("p", ConnectedClient(own, "c", user="alice"))
    assert members.producer("c") is own


async def test_a_connection_that_changes_its_name_is_one_member(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = Part(tmp_path).members
    connection = peer()
    members.join(ConnectedClient(connection, "old"), consumer("g"))
    members.join_producers("p", ConnectedClient(connection, "old"))
    assert members.join(ConnectedClient(connection, "new"), consumer("g"))
    assert members.join_producers("p", ConnectedClient(connection, "new"))
    group = members.members("g")
    assert group is not None
    assert group.client_ids == ("new",)
    assert (members.producer("old"), members.producer("new")) == (None, connection)
    assert "client_renamed" in caplog.text
    assert "was='old' now='new'" in caplog.text


async def test_a_client_with_two_connections_is_listed_twice(tmp_path: Path) -> None:
    members = Part(tmp_path).members
    members.join(ConnectedClient(peer("a:1"), "c"), consumer("g"))
    members.join(ConnectedClient(peer("a:2"), "c"), consumer("g"))
    group = members.members("g")
    assert group is not None
    assert group.client_ids == ("c", "c")


async def test_listeners_hear_of_subscriptions_and_of_deserted_groups(tmp_path: Path) -> None:
    members = Part(tmp_path).members
    subscribed: list[tuple[str, tuple[SubscriptionData, ...]]] = []
    deserted: list[str] = []
    members.on_subscribed.append(lambda group, wanted: subscribed.append((group, wanted)))
    members.on_deserted.append(deserted.append)
    one, two = peer("a:1"), peer("a:2")
    members.join(ConnectedClient(one, "c1"), consumer("g"))
    members.join(ConnectedClient(two, "c2"), consumer("g"), with_subscriptions=False)
    assert subscribed == [("g", (wants("t"),))]
    assert members.groups_subscribed("t") == {"g"}
    assert members.leave("g", one)
    assert not members.leave("g", one)
    assert deserted == []
    members.closed(two, "gone")
    assert deserted == ["g"]
    assert members.consumers == {}
    assert members.groups_subscribed("t") == set()


@pytest.mark.parametrize(
    ("told", "name"), [("JAVA", "JAVA"), ("go", "GO"), (Language.CPP, "CPP"), (99, "OTHER"), (None, "JAVA")]
)
async def test_the_language_of_a_client_is_known_by_name(told: int | str | None, name: str) -> None:
    caller = peer()
    header = {"code": 34, "flag": 0, "opaque": 1, "version": 300, "language": told}
    caller.data_received(pack_frame(JSON, json.dumps(header).encode(), b""))
    client = ConnectedClient.of(caller, "c")
    assert (client.language, client.version) == (name, 300)


# --- members that disagree -----------------------------------------------------------------------------


def mismatches(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if "subscription_mismatch" in entry.getMessage()]


async def test_members_that_want_different_things_are_both_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = Part(tmp_path).members
    one, two = ConnectedClient(peer("a:1"), "one"), ConnectedClient(peer("a:2"), "two")
    members.join(one, consumer("g", wants("orders", "paid")))
    members.join(two, consumer("g", wants("orders", "paid || refunded")))
    [warning] = mismatches(caplog)
    for word in ("group='g'", "member='two'", "other='one'", "'orders: paid || refunded'", "'orders: paid'"):
        assert word in warning
    for version in range(2, 5):  # later heartbeats say the same
        members.join(one, consumer("g", wants("orders", "paid", version)))
        members.join(two, consumer("g", wants("orders", "paid || refunded", version)))
    assert len(mismatches(caplog)) == 1
    members.join(one, consumer("g", wants("orders", "lost", 9)))
    assert len(mismatches(caplog)) == 2
    members.join(one, consumer("g", wants("orders", "paid", 10)))  # known already
    assert len(mismatches(caplog)) == 2
    group = members.members("g")
    assert group is not None
    assert group.mismatches == members.mismatches == 2


async def test_a_newcomer_is_compared_with_one_member_of_each_opinion(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = Part(tmp_path).members
    for number in range(20):
        members.join(ConnectedClient(peer(f"a:{number}"), f"old-{number}"), consumer("g", wants("t", "a")))
    assert not mismatches(caplog)
    members.join(ConnectedClient(peer("b:1"), "new-1"), consumer("g", wants("t", "b")))
    members.join(ConnectedClient(peer("b:2"), "new-2"), consumer("g", wants("t", "b")))
    assert len(mismatches(caplog)) == 2
    members.join(ConnectedClient(peer("c:1"), "newest"), consumer("g", wants("t", "c")))
    assert len(mismatches(caplog)) == 4


async def test_members_that_agree_are_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    members = Part(tmp_path).members
    members.join(ConnectedClient(peer("a:1"), "one"), consumer("g", wants("t", "a", 1), wants("u")))
    members.join(ConnectedClient(peer("a:2"), "two"), consumer("g", wants("u"), wants("t", "a", 7)))
    members.join(ConnectedClient(peer("a:3"), "three"), consumer("g"), with_subscriptions=False)
    assert not caplog.records


# --- notices, over connections -------------------------------------------------------------------------


async def test_everybody_is_told_of_newcomers_the_newcomer_too(part: Part) -> None:
    async with clients(part, "one", "two", "elsewhere") as (one, two, elsewhere):
        await elsewhere.heartbeat(consumer("other"))
        await one.heartbeat(consumer("g"))
        await until(lambda: one.notices == ["g"])
        await two.heartbeat(consumer("g"))
        await until(lambda: one.notices == ["g", "g"] and two.notices == ["g"])
        assert elsewhere.notices == ["other"]


async def test_nobody_is_told_of_a_heartbeat_that_changes_nothing(part: Part) -> None:
    async with clients(part, "one") as (one,):
        await one.heartbeat(consumer("g", wants("t", "a", 1)))
        await one.heartbeat(consumer("g", wants("t", "b", 2)))
        await one.heartbeat(consumer("g", wants("t", "b", 2), wants("u")))
        await until(lambda: len(one.notices) >= 2)
        await one.consumer_ids("g")
        assert one.notices == ["g", "g"]  # it came, and its topics changed; a new filter is no reason


async def test_the_rest_is_told_when_a_connection_closes(part: Part) -> None:
    async with clients(part, "one", "two") as (one, two):
        await one.heartbeat(consumer("g"))
        await two.heartbeat(consumer("g"))
        await until(lambda: len(one.notices) == 2)
        await two.close()
        await until(lambda: len(one.notices) == 3)
        group = part.members.members("g")
        assert group is not None
        assert group.client_ids == ("one",)


async def test_members_of_broadcasting_groups_are_told_nothing(part: Part) -> None:
    async with clients(part, "one", "two") as (one, two):
        await one.heartbeat(consumer("g", model=MessageModel.BROADCASTING))
        await two.heartbeat(consumer("g", model=MessageModel.BROADCASTING))
        await two.close()
        await until(lambda: len(part.members.consumers["g"].by_caller) == 1)
        await one.consumer_ids("g")
        assert one.notices == []


async def test_many_that_come_at_once_are_told_once(part: Part) -> None:
    async with clients(part, *[f"c{number}" for number in range(20)]) as crowd:
        for client in crowd:
            await client.heartbeat(producers=("p",))
        for member in list(part.members.producers["p"].values()):
            part.members.join(member.client, consumer("g"))
        await until(lambda: all(client.notices for client in crowd))
        await asyncio.gather(*[client.consumer_ids("g") for client in crowd])
        assert [client.notices for client in crowd] == [["g"]] * 20


# --- silence -------------------------------------------------------------------------------------------


async def test_a_silent_member_loses_its_connection_and_the_rest_is_told(part: Part) -> None:
    part.members.start()
    async with clients(part, "silent", "alive", "producer") as (silent, alive, producer):
        await silent.heartbeat(consumer("g"))
        await producer.heartbeat(producers=("p",))
        await part.clock.advance(115)
        await alive.heartbeat(consumer("g"))
        await until(lambda: len(alive.notices) == 1)
        await part.clock.advance(5)
        assert len(part.members.consumers["g"].by_caller) == 2  # 120 s is not more than 120 s
        await part.clock.advance(10)
        assert part.members.consumers["g"].client_ids == ("alive",)
        assert part.members.producers == {}
        assert part.members.expired == 2
        await until(lambda: len(alive.notices) == 2)
        await until(lambda: silent.dialer.connected_peer(part.address) is None)
        await until(lambda: producer.dialer.connected_peer(part.address) is None)
        assert alive.dialer.connected_peer(part.address) is not None
        await silent.heartbeat(consumer("g"))  # it comes back on a new connection
        assert sorted(part.members.consumers["g"].client_ids) == ["alive", "silent"]


async def test_the_scan_stops_with_the_members(tmp_path: Path) -> None:
    part = Part(tmp_path)
    part.members.start()
    part.members.start()
    assert part.clock.pending == 1
    part.members.close()
    assert part.clock.pending == 0
