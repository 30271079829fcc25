"""A follower acts for its leader while that is away, and hands everything back when it returns."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kerolox import Message, PushConsumer, PushOptions, Received
from kerolox import Producer as ClientProducer
from kerolox.broker.fellows.group_watch import is_due
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.clock import SYSTEM_CLOCK
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.offsets import DelayOffsetTable
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.registration import MinBrokerIdChanged
from kerolox.protocol.headers.replication import HaInfo, ResetMasterFlushOffsetRequest
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.replication.link_state import LinkState
from kerolox.testing.broker import running_broker
from kerolox.testing.nameserver import running_nameserver

from .acting_kit import ACTING, BrokerAlone, company, until
from .talk import Talk, send_fields
from .transaction_kit import COMMIT, TOPIC, Producer

KEY = {"UNIQ_KEY": "7F000001162E18B4AAC28E2F6D2A0001"}
NUMBERS = [b"%d" % number for number in range(5)]


async def test_what_is_due_goes_to_another_leader_once_and_the_rest_is_handed_back(tmp_path: Path) -> None:
    async with company(tmp_path, delay_levels="3s 60s") as c:
        for topic in ("delayed", "timed", "later", "far", TOPIC):
            for running in (c.leader, c.other):
                await running.create_topic(topic, queues=1)
        payer = Producer(c.leader)
        await payer.come()
        for number in NUMBERS:
            await c.send("delayed", number, {**KEY, "DELAY": "1"})
            await c.send("later", number, {**KEY, "DELAY": "2"})
            await c.send("timed", number, {**KEY, "TIMER_DELAY_MS": "3000"})
            await c.send("far", number, {**KEY, "TIMER_DELAY_MS": "60000"})
        born_ms = SYSTEM_CLOCK.wall_ms()
        ended = await payer.prepare(b"ended", KEY, born_timestamp=born_ms)
        await payer.end(ended)
        for number in NUMBERS:
            await payer.prepare(number, KEY, born_timestamp=born_ms)
        await c.copied()
        await c.leader_goes()
        await c.acts()
        producer = Producer(c.other)
        producer.outcome = COMMIT
        await producer.come()
        there = c.other.broker.store
        for topic in ("delayed", "timed", TOPIC):
            await until(lambda topic=topic: there.queues.max_offset(topic, 0) == 5, lambda topic=topic: topic)
            assert await c.bodies(c.other, topic) == NUMBERS
        assert c.follower.broker.store.queues.max_offset("delayed", 0) <= 0
        await c.leader_comes()
        assert c.leader.broker.leadership.leads
        assert not c.follower.broker.leadership.acts
        home = c.leader.broker
        # Far ahead: what was to come then waits at home, and all the rest is over.
        assert home.later.timers.files.wheel.waiting == 5
        assert home.tables.delay_offsets.offsets[1] == 5
        assert home.transactions.finished.pending == 0
        await asyncio.sleep(1)
        for topic in ("delayed", "timed"):
            assert home.store.queues.max_offset(topic, 0) <= 0
        assert await c.bodies(c.leader, TOPIC) == [b"ended"]
        for topic in ("delayed", "timed", TOPIC):
            assert await c.bodies(c.other, topic) == NUMBERS
        await payer.dialer.close()
        await producer.dialer.close()


# --- consumers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
async def test_consumers_go_on_where_they_were_and_stay_there(tmp_path: Path, ordered: bool) -> None:
    """An ordered consumer needs locks, which it asks id 0 for."""
    async with company(tmp_path) as c:
        await c.leader.create_topic("T", queues=2)
        got: list[bytes] = []
        first, second = [b"1 %d" % number for number in range(20)], [b"2 %d" % number for number in range(20)]
        consumer = PushConsumer(
            c.nameserver.address, group="g", options=PushOptions(ordered=ordered, start="first")
        )

        @consumer.on("T")
        async def take(message: Received) -> None:
            got.append(message.body)

        for body in first:
            await c.send("T", body)
        async with consumer:
            await until(lambda: len(got) == 20)
            await until(lambda: c.leader.broker.tables.offsets.offset("T", "g", 0) == 20)
            for body in second:
                await c.send("T", body, queue_id=1)
            await c.copied()
            await until(lambda: len(got) == 40)
        # Somebody else goes on, with nothing but what the brokers know.
        await until(lambda: c.leader.broker.tables.offsets.offset("T", "g", 1) == 20)
        await c.copied()
        third = [b"3 %d" % number for number in range(20)]
        for body in third:
            await c.send("T", body)
        await c.copied()
        await c.leader_goes()
        await c.acts()
        again = PushConsumer(
            c.nameserver.address, group="g", options=PushOptions(ordered=ordered, start="first")
        )

        @again.on("T")
        async def take_again(message: Received) -> None:
            got.append(message.body)

        async with again:
            await until(lambda: len(got) == 60, lambda: Counter(got))
        await until(lambda: c.follower.broker.tables.offsets.offset("T", "g", 0) == 40)
        assert sorted(got) == sorted(first + second + third)
        await c.leader_comes()
        assert c.leader.broker.tables.offsets.offset("T", "g", 0) == 40
        assert c.leader.broker.tables.offsets.offset("T", "g", 1) == 20


async def test_it_takes_no_messages_and_routes_say_so(tmp_path: Path) -> None:
    async with company(tmp_path) as c:
        await c.leader.create_topic("T", queues=1)
        await c.copied()
        await c.leader_goes()
        await c.acts()
        talk = Talk(c.dialer, c.follower)
        refused = await talk.send("T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        route = await talk.route("T")
        assert route is not None
        (broker,), (queues,) = route.broker_datas, route.queue_datas
        assert broker.broker_addrs == {0: c.follower.address}
        assert queues.perm == 4
        assert (await talk.pull("T")).code == ResponseCode.PULL_NOT_FOUND  # though slaveReadEnable is off
        info = await c.dialer.call(c.follower.address, RequestCode.GET_BROKER_RUNTIME_INFO)
        assert KVTable.decode(info.body).table["brokerActive"] == "true"
        await c.leader_comes()
        await until(lambda: not c.follower.broker.leadership.acts)
        route = await talk.route("T")
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: c.leader.address, 1: c.follower.address}
        assert route.queue_datas[0].perm == 6
        async with ClientProducer(c.nameserver.address, group="p") as producer:
            await producer.send(Message("T", b"again"))


# --- what is due ----------------------------------------------------------------------------------------


async def test_without_an_escape_everything_waits_for_the_leader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "kerolox.broker.role.leadership")
    async with company(tmp_path, remote_escape=False, delay_levels="1s") as c:
        for topic in ("delayed", "timed"):
            for running in (c.leader, c.other):
                await running.create_topic(topic, queues=1)
        for number in NUMBERS:
            await c.send("delayed", number, {**KEY, "DELAY": "1"})
            await c.send("timed", number, {**KEY, "TIMER_DELAY_MS": "2000"})
        await c.copied()
        await c.leader_goes()
        await c.acts()
        await asyncio.sleep(2.5)  # until all of it is due
        lines = [line for line in caplog.messages if line.startswith("broker_acts")]
        assert len(lines) == 1
        assert "enableRemoteEscape" in lines[0]
        for topic in ("delayed", "timed"):
            assert await c.bodies(c.other, topic) == []
        await c.leader_comes()
        for topic in ("delayed", "timed"):
            store = c.leader.broker.store
            await until(lambda topic=topic, store=store: store.queues.max_offset(topic, 0) == 5)
            assert await c.bodies(c.leader, topic) == NUMBERS


async def test_what_nobody_takes_waits_and_comes_once(tmp_path: Path) -> None:
    """RocketMQ's skips a half message after ten tries."""
    async with company(tmp_path, delay_levels="1s", auto_create_topics=False) as c:
        topics = ("delayed", "timed", TOPIC)
        for topic in (*topics, "known"):
            await c.leader.create_topic(topic, queues=1)
        await c.other.create_topic("known", queues=1)
        payer = Producer(c.leader)
        await payer.come()
        await c.send("delayed", b"1", {**KEY, "DELAY": "1"})
        await c.send("known", b"behind it", {**KEY, "DELAY": "1"})
        await c.send("timed", b"1", {**KEY, "TIMER_DELAY_MS": "2000"})
        await payer.prepare(b"1", KEY, born_timestamp=SYSTEM_CLOCK.wall_ms())
        await c.copied()
        await c.leader_goes()
        await c.acts()
        there = c.other.broker.store
        await until(lambda: there.queues.max_offset("known", 0) == 1)
        follower = c.follower.broker
        await until(lambda: follower.transactions.check_backs._moved_in_vain > 12)
        assert follower.tables.delay_offsets.offsets.get(1, 0) == 0
        assert follower.transactions.finished.progress == 0
        producer = Producer(c.other)
        producer.outcome = COMMIT
        await producer.come()
        for topic in topics:
            await c.other.create_topic(topic, queues=1)
        for topic in topics:
            await until(lambda topic=topic: there.queues.max_offset(topic, 0) == 1, lambda topic=topic: topic)
        await until(lambda: follower.tables.delay_offsets.offsets[1] == 2)
        assert await c.bodies(c.other, "known") == [b"behind it"]
        await payer.dialer.close()
        await producer.dialer.close()


async def test_a_message_on_its_way_to_a_time_far_ahead_waits_elsewhere(tmp_path: Path) -> None:
    async with company(tmp_path, timer_roll_slots=4) as c:  # seconds
        for running in (c.leader, c.other):
            await running.create_topic("timed", queues=1)
        before_ms = SYSTEM_CLOCK.wall_ms()
        await c.send("timed", b"far", {**KEY, "TIMER_DELAY_MS": "9000"})
        await c.copied()
        await c.leader_goes()
        await c.acts()
        there = c.other.broker
        await until(lambda: there.store.queues.max_offset("rmq_sys_wheel_timer", 0) > 0)
        assert there.store.queues.max_offset("timed", 0) <= 0
        await until(lambda: there.store.queues.max_offset("timed", 0) == 1)
        (message,) = await c.messages(c.other, "timed")
        assert message.body == b"far"
        assert 8000 <= message.store_timestamp - before_ms <= 13_000


async def test_what_the_follower_had_not_got_comes_from_the_leader(tmp_path: Path) -> None:
    """Its time passed while another delivered in the leader's stead."""
    async with company(tmp_path, delay_levels="2s", total_replicas=1) as c:
        for topic in ("delayed", "timed"):
            for running in (c.leader, c.other):
                await running.create_topic(topic, queues=1)
        await c.send("timed", b"copied", {**KEY, "TIMER_DELAY_MS": "3000"})
        await c.send("delayed", b"copied", {**KEY, "DELAY": "1"})
        await c.copied()
        await c.follower.broker.replication.follower.stop()
        await c.send("timed", b"not copied", {**KEY, "TIMER_DELAY_MS": "3000"})
        await c.send("timed", b"later", {**KEY, "TIMER_DELAY_MS": "60000"})
        await c.send("delayed", b"not copied", {**KEY, "DELAY": "1"})
        timers = c.leader.broker.later.timers
        await until(lambda: timers.files.wheel.waiting == 3)
        await c.leader_goes()
        await c.acts()
        for topic in ("timed", "delayed"):
            there = c.other.broker.store
            await until(lambda topic=topic, there=there: there.queues.max_offset(topic, 0) == 1)
        await c.leader_comes()
        for topic in ("timed", "delayed"):
            home = c.leader.broker.store
            await until(
                lambda topic=topic, home=home: home.queues.max_offset(topic, 0) == 1,
                lambda topic=topic: topic,
            )
            assert await c.bodies(c.leader, topic) == [b"not copied"]
            assert await c.bodies(c.other, topic) == [b"copied"]
        assert c.leader.broker.later.timers.files.wheel.waiting == 1


async def test_what_the_leader_delivered_last_does_not_come_again(tmp_path: Path) -> None:
    """The follower has its table of delays from before, and its log."""
    async with company(tmp_path, delay_levels="2s 3s") as c:
        for running in (c.leader, c.other):
            await running.create_topic("T", queues=1)
        await c.copied()
        await c.follower.broker.copies.copy.close()
        for number in NUMBERS:
            await c.send("T", b"first " + number, {**KEY, "DELAY": "1"})
        home, copy = c.leader.broker.store, c.follower.broker.store
        await until(lambda: home.queues.max_offset("T", 0) == 5)
        for number in NUMBERS:
            await c.send("T", b"second " + number, {**KEY, "DELAY": "2"})
        await until(lambda: copy.log.max_offset == home.log.max_offset)
        await c.leader_goes()
        await c.acts()
        assert c.follower.broker.later.delays.levels[0].next_offset == 5
        await until(lambda: c.other.broker.store.queues.max_offset("T", 0) == 5)
        assert await c.bodies(c.other, "T") == [b"second " + number for number in NUMBERS]


# --- who acts, and when -----------------------------------------------------------------------------------


def test_the_lowest_that_is_known_acts() -> None:
    assert is_due(1, "b", {1: "b", 2: "c"})
    assert not is_due(2, "c", {1: "b", 2: "c"})
    assert not is_due(1, "b", {0: "a", 1: "b"})
    assert not is_due(1, "b", {2: "c"})  # not known itself: nobody would find it
    assert not is_due(1, "b", {1: "another"})
    assert not is_due(1, "b", {})


@pytest.mark.parametrize("old", [False, True], ids=["5", "4"])
async def test_the_next_one_acts_when_the_lowest_goes_too(tmp_path: Path, old: bool) -> None:
    """By name servers of RocketMQ 4 too, which know routes alone."""
    async with company(tmp_path) as c:
        if old:
            server = c.nameserver._server
            assert server is not None
            for code in (RequestCode.GET_BROKER_MEMBER_GROUP, RequestCode.BROKER_HEARTBEAT):
                del server.handlers.routes[code]
        async with running_broker(
            directory=tmp_path / "a2", nameserver=c.nameserver, brokerRole="SLAVE", brokerId=2, **ACTING
        ) as third:
            await c.copied()
            await until(lambda: set(third.broker.fellowship.watch.members) == {0, 1, 2})
            await c.leader_goes()
            await c.acts()
            assert not third.broker.leadership.acts
            await c.follower.stop()
            await until(lambda: third.broker.leadership.acts)
            await c.follower.start()
            await c.acts()
            await until(lambda: not third.broker.leadership.acts)


async def test_a_follower_that_copies_does_not_act_whatever_name_servers_know(tmp_path: Path) -> None:
    async with company(tmp_path) as c:
        await c.copied()
        watch, routes = c.follower.broker.fellowship.watch, c.nameserver.routes
        # As a name server that was started again, and has heard of the follower first.
        await c.leader.broker.nameservers.registrations.close()
        await until(lambda: set(routes.groups["broker-a"].addresses) == {1})
        await until(lambda: set(watch.members) == {1})
        looks = watch.looks
        await until(lambda: watch.looks > looks + 5)
        assert not c.follower.broker.leadership.acts


async def test_brokers_give_signs_of_life(tmp_path: Path) -> None:
    for old in (True, False):
        async with company(tmp_path / str(old), not_alive_ms=600, old_nameservers=old) as c:
            alive, key = c.nameserver.routes.alive, ("DefaultCluster", c.follower.address)
            seen_s, told = alive[key].seen_s, alive[key]
            assert told.timeout_s == 0.6
            await until(lambda key=key, alive=alive, seen_s=seen_s: alive[key].seen_s > seen_s + 1)


async def test_a_follower_believes_name_servers_more_than_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with company(tmp_path) as c:
        await c.copied()
        follower = c.follower.broker.replication.follower
        await until(lambda: follower.leaders_end.note.address == c.leader.address)
        exchange = RequestCode.EXCHANGE_BROKER_HA_INFO
        false = HaInfo(
            master_ha_address=c.other.broker.endpoints.ha_address, master_address=c.other.address,
            master_flush_offset=0,
        )  # fmt: skip
        answer = await c.dialer.call(c.follower.address, exchange, false)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"name servers report {c.leader.address} as the leader" in (answer.remark or "")
        assert "leader_not_believed" in caplog.text
        await c.send("T", b"1")
        end = c.leader.broker.store.log.max_offset
        await until(lambda: c.follower.broker.store.log.max_offset == end)
        assert follower.leader == c.leader.broker.endpoints.ha_address
        # While no leader is registered it is believed, until one is.
        await c.leader_goes()
        await c.acts()
        answer = await c.dialer.call(c.follower.address, exchange, false)
        assert answer.code == 0
        assert not c.follower.broker.leadership.acts
        await until(lambda: follower.leader == false.master_ha_address)
        await c.leader_comes()
        await until(lambda: follower.leader == c.leader.broker.endpoints.ha_address and follower.copying)


async def test_a_notice_that_was_wrong_heals_when_a_leader_is_registered(tmp_path: Path) -> None:
    async with company(tmp_path) as c:
        await c.copied()
        leader, follower = c.leader.broker, c.follower.broker
        link = follower.replication.follower
        # The same broker, and a port nobody listens at: heeded, for name servers name this broker.
        wrong = HaInfo(
            master_ha_address="127.0.0.1:1", master_address=c.leader.address, master_flush_offset=0
        )
        answer = await c.dialer.call(c.follower.address, RequestCode.EXCHANGE_BROKER_HA_INFO, wrong)
        assert answer.code == 0
        follower.nameservers.registrations.register_all()
        await until(lambda: link.leader == leader.endpoints.ha_address and link.copying)


async def test_a_follower_that_is_promoted_meanwhile_does_not_copy_from_a_leader_that_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is checked with the name servers, and acting ends: the role may change before the answer."""
    async with company(tmp_path) as c:
        await c.copied()
        follower = c.follower.broker
        monkeypatch.setattr(follower.fellowship.watch, "leader_returns", follower.leadership.lead)
        claim = HaInfo(
            master_ha_address="127.0.0.1:1", master_address=c.leader.address, master_flush_offset=0
        )
        answer = await c.dialer.call(c.follower.address, RequestCode.EXCHANGE_BROKER_HA_INFO, claim)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "claims to lead" in (answer.remark or "")
        await follower.leadership.follow("a test")
        link = follower.replication.follower
        await until(lambda: link.state is not LinkState.OFF)
        assert link.leader != claim.master_ha_address


async def test_what_brokers_and_name_servers_tell_each_other(tmp_path: Path) -> None:
    async with company(tmp_path) as c:
        await c.copied()
        exchange, leader = RequestCode.EXCHANGE_BROKER_HA_INFO, c.leader.broker
        told = (await c.dialer.call(c.leader.address, exchange, HaInfo())).header(HaInfo)
        assert told.master_address == c.leader.address
        assert told.master_ha_address == leader.endpoints.ha_address
        assert told.master_flush_offset is not None
        nobody = await c.dialer.call(c.follower.address, exchange, HaInfo())
        assert (nobody.code, nobody.header(HaInfo)) == (0, HaInfo())
        two = await c.dialer.call(c.leader.address, exchange, told)
        assert two.code == ResponseCode.SYSTEM_ERROR
        assert "brokerId 0" in (two.remark or "")
        reset = ResetMasterFlushOffsetRequest(master_flush_offset=77)
        for running, offset in ((c.follower, 77), (c.leader, 0)):
            code = RequestCode.RESET_MASTER_FLUSH_OFFSET
            assert (await c.dialer.call(running.address, code, reset)).code == 0
            assert running.broker.store.notes.checkpoint.master_flushed_offset == offset
        watch = c.follower.broker.fellowship.watch
        c.follower.broker.options.members_ms = 60_000
        looks = watch.looks
        await until(lambda: watch.looks > looks)  # the pause that was under way is over
        looks = watch.looks
        changed = MinBrokerIdChanged(min_broker_id=1, min_broker_addr=c.follower.address)
        await c.dialer.tell(c.follower.address, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, changed)
        await until(lambda: watch.looks > looks)


async def test_a_leader_that_starts_stays_to_itself_until_its_followers_copy(tmp_path: Path) -> None:
    async with company(tmp_path) as c:
        await c.leader.create_topic("T", queues=1)
        await c.copied()
        await c.leader_goes()
        await c.acts()
        link = c.follower.broker.replication.follower
        await link.stop()
        starting = asyncio.ensure_future(c.leader_comes())
        await until(lambda: not c.follower.broker.leadership.acts)
        talk = Talk(c.dialer, c.leader)
        refused = await talk.send("T")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "followers" in (refused.remark or "")
        assert not starting.done()
        assert 0 not in c.nameserver.routes.groups["broker-a"].addresses
        await link.start()
        await starting
        assert (await talk.send("T")).code == 0
        assert c.nameserver.routes.groups["broker-a"].addresses[0] == c.leader.address


async def test_a_leader_whose_follower_never_comes_leads_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kerolox.broker.configured.hand_back.CONNECT_S", 0.2)
    monkeypatch.setattr("kerolox.broker.configured.hand_back.PAUSE_S", 0.05)
    async with company(tmp_path) as c:
        await c.copied()
        await c.leader_goes()
        await c.acts()
        await c.follower.broker.replication.follower.stop()
        await c.leader_comes()
        assert c.leader.broker.leadership.leads
        assert "leads_without_followers" in caplog.text


async def test_a_name_server_tells_brokers_and_is_believed_at_once(tmp_path: Path) -> None:
    settings = {**ACTING, "members_ms": 60_000}
    async with (
        running_nameserver(
            directory=tmp_path / "n", support_acting_master=True, notify_min_broker_id_changed=True
        ) as nameserver,
        running_broker(directory=tmp_path / "a", nameserver=nameserver, **settings) as leader,
        running_broker(
            directory=tmp_path / "b", nameserver=nameserver, brokerRole="SLAVE", brokerId=1, **settings
        ) as follower,
    ):
        await until(lambda: follower.broker.leadership.leader is not None)
        await leader.stop()
        await until(lambda: follower.broker.fellowship.watch.members == {1: follower.address})


async def test_a_leader_that_is_killed_is_acted_for_and_takes_over_again(tmp_path: Path) -> None:
    settings = {**ACTING, "delay_levels": "3s"}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        nameserver = await enter(running_nameserver(directory=tmp_path / "n", support_acting_master=True))
        other = await enter(
            running_broker(
                directory=tmp_path / "b", nameserver=nameserver, broker_name="broker-b", **settings
            )
        )
        follower = await enter(
            running_broker(
                directory=tmp_path / "a1", nameserver=nameserver, brokerRole="SLAVE", brokerId=1, **settings
            )
        )
        dialer = await enter(Dialer())
        leader = BrokerAlone(tmp_path / "a0", nameserver.address, "messageDelayLevel=3s")
        stack.callback(leader.kill)
        leader.start()
        group, ours = nameserver.routes.groups, follower.broker
        await until(lambda: 0 in group["broker-a"].addresses, for_s=60)
        address = group["broker-a"].addresses[0]
        await until(lambda: ours.replication.follower.copying and not ours.leadership.acts, for_s=30)
        config = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
        for to in (address, other.address):
            await AdminCalls(NameServers([to], dialer), dialer).put_topic(to, config)
        for number in NUMBERS:
            header = SendRequestV2(**send_fields("T", {**KEY, "DELAY": "1"}))
            assert (await dialer.call(address, RequestCode.SEND_MESSAGE_V2, header, number)).code == 0
        await until(lambda: ours.store.queues.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 5)
        # One that says that it returns has half a minute. It has returned when it was seen.
        await until(lambda: 0 in ours.fellowship.watch.members)
        leader.kill()
        await until(lambda: other.broker.store.queues.max_offset("T", 0) == 5)
        assert ours.leadership.acts
        leader.start()
        await until(lambda: 0 in group["broker-a"].addresses, for_s=60)
        assert not ours.leadership.acts
        answer = await dialer.call(group["broker-a"].addresses[0], RequestCode.GET_ALL_DELAY_OFFSET)
        assert DelayOffsetTable.decode(answer.body).offset_table == {1: 5}
        await until(lambda: ours.replication.follower.copying)
        assert ours.store.queues.max_offset("T", 0) <= 0
        talk = Talk(dialer, other)
        assert sorted(message.body for message in await talk.messages("T")) == NUMBERS
