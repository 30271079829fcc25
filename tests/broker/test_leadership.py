"""A broker that leads, follows, and leads again, with messages waiting everywhere."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import kerolox.broker
from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.role.settings import RoleChange
from kerolox.broker.role.value import LeaderAddress
from kerolox.errors import KeroloxError
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.send import RecallRequest, SendBackRequest
from kerolox.store.message_store import MessageStore
from kerolox.store.options import FlushMode
from kerolox.store.state import Obstacle
from kerolox.testing.clock import ManualClock

from .talk import BORN_MS, until
from .transaction_kit import COMMIT, ROLLBACK, Producer, Scene, scene

KEY = {"UNIQ_KEY": "7F000001162E18B4AAC28E2F6D2A0001"}
REFUSED = "[REJECTREQUEST]system busy, start flow control for a while"


async def bodies(producer: Producer, topic: str) -> list[bytes]:
    return sorted(message.body for message in await producer.messages(topic))


async def arrived(s: Scene, topic: str, count: int) -> None:
    """Let time pass until so many are there."""
    for _ in range(100):
        if s.broker.store.queues.max_offset(topic, 0) >= count:
            return
        await s.clock.advance(0.5)
        await asyncio.sleep(0.01)
    raise AssertionError(f"{s.broker.store.queues.max_offset(topic, 0)} of {count} are in {topic}")


@pytest.mark.parametrize("flush_mode", [FlushMode.ASYNC, FlushMode.SYNC])
async def test_what_waits_stays_while_it_follows_and_comes_once_when_it_leads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flush_mode: FlushMode
) -> None:
    clock = ManualClock(BORN_MS)
    numbers = [b"%d" % number for number in range(5)]
    async with scene(tmp_path, clock, flush_mode=flush_mode) as s:
        producer = await s.producer()
        leadership = s.broker.leadership
        for number in numbers:
            await producer.send("delayed", number, {**KEY, "DELAY": "2"})
            await producer.send("timed", number, {**KEY, "TIMER_DELAY_MS": "8000"})
        ended, undone, *_ = [await producer.prepare(number) for number in numbers]
        assert (await producer.end(ended)).code == 0
        assert (await producer.end(undone, ROLLBACK)).code == 0
        await leadership.follow("another one leads")
        await clock.advance(120)
        await asyncio.sleep(0.05)
        for topic, there in (("delayed", 0), ("timed", 0), ("orders", 1)):
            assert s.broker.store.queues.max_offset(topic, 0) == there
        assert producer.asked == []
        # Nobody so much as tried.
        assert [line for line in caplog.messages if "not_delivered" in line or "timer_waits" in line] == []
        producer.outcome = COMMIT
        await leadership.lead()
        for topic in ("delayed", "timed"):
            await arrived(s, topic, 5)
        await s.round(60)
        await arrived(s, "orders", 4)
        assert len(producer.asked) == 3
        # Nothing is left of it for the next times.
        for _ in range(2):
            await leadership.follow("another one leads")
            await leadership.lead()
            await s.round(60)
        for topic in ("delayed", "timed"):
            assert await bodies(producer, topic) == numbers
        assert await bodies(producer, "orders") == [b"0", b"2", b"3", b"4"]
        assert len(producer.asked) == 3
    async with scene(tmp_path, clock, flush_mode=flush_mode) as s:
        producer = await s.producer()
        await s.round(60)
        assert producer.asked == []
        for topic in ("delayed", "timed"):
            assert await bodies(producer, topic) == numbers


async def test_while_it_follows_it_refuses_whoever_writes(tmp_path: Path) -> None:
    async with scene(tmp_path, recall=True) as s:
        producer = await s.producer()
        half = await producer.prepare()
        stored = await producer.send("T", b"one", KEY)
        timed = await producer.send("T", b"two", {**KEY, "TIMER_DELAY_MS": "60000"})
        assert (await producer.send("T", b"three", KEY)).code == 0
        leadership, end = s.broker.leadership, s.broker.store.progress.appended
        await leadership.follow("another one leads")
        back = SendBackRequest(offset=0, group="g", delay_level=0)
        recall = RecallRequest(producer_group="p", topic="T", recall_handle=timed.fields["recallHandle"])
        for answer in (
            await producer.send("T", b"x", KEY),
            await producer.send_v1("T", b"x", properties=KEY),
            await producer.send_batch("T", encode_batch([(0, b"x", b"")])),
            await producer.send("T", b"x", {**KEY, "DELAY": "1"}),
            await producer.dialer.call(s.running.address, RequestCode.CONSUMER_SEND_MSG_BACK, back),
        ):
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert answer.remark is not None
            assert answer.remark.startswith(REFUSED)
        assert (await producer.end(half)).code == ResponseCode.SLAVE_NOT_AVAILABLE
        recalled = await producer.dialer.call(s.running.address, RequestCode.RECALL_MESSAGE, recall)
        assert recalled.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert s.broker.store.progress.appended == end
        await leadership.lead()
        assert (await producer.send("T", b"four", KEY)).code == 0
        assert (await producer.end(half)).code == 0
        assert stored.code == 0
        assert [message.body for message in await producer.messages("T")] == [b"one", b"three", b"four"]


async def test_a_role_that_changes_all_the_time_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        for number in range(30):
            body = b"%02d" % number
            await producer.send("delayed", body, {**KEY, "DELAY": "1"})
            await producer.send("timed", body, {**KEY, "TIMER_DELAY_MS": "2000"})
            change = asyncio.ensure_future(s.broker.leadership.follow("another one leads"))
            await s.clock.advance(0.35)
            await change
            change = asyncio.ensure_future(s.broker.leadership.lead())
            await s.clock.advance(0.35)
            await change
        for topic in ("delayed", "timed"):
            await arrived(s, topic, 30)
        await s.clock.advance(10)
        for topic in ("delayed", "timed"):
            assert await bodies(producer, topic) == [b"%02d" % number for number in range(30)]


async def test_what_is_sent_as_it_begins_to_follow_is_stored_or_refused(tmp_path: Path) -> None:
    async with scene(tmp_path, flush_mode=FlushMode.SYNC) as s:
        producer = await s.producer()
        assert (await producer.send("T", b"first", KEY)).code == 0
        sends = [asyncio.ensure_future(producer.send("T", b"%d" % number, KEY)) for number in range(50)]
        await asyncio.sleep(0)
        await s.broker.leadership.follow("another one leads")
        codes = [(await send).code for send in sends]
        assert set(codes) <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        assert s.broker.store.queues.max_offset("T", 0) == 1 + codes.count(ResponseCode.SUCCESS)


async def test_what_waits_is_there_for_a_start_after_it_closed_as_a_follower(tmp_path: Path) -> None:
    clock = ManualClock(BORN_MS)
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        await producer.send("delayed", b"1", {**KEY, "DELAY": "2"})
        await producer.send("timed", b"1", {**KEY, "TIMER_DELAY_MS": "8000"})
        await producer.prepare(b"1")
        await s.broker.leadership.follow("another one leads")
        await clock.advance(60)
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        producer.outcome = COMMIT
        for topic in ("delayed", "timed"):
            await arrived(s, topic, 1)
        await s.round(60)
        await until(lambda: s.broker.store.queues.max_offset("orders", 0) == 1)


async def test_a_part_that_cannot_begin_leaves_it_following(tmp_path: Path) -> None:
    told: list[str] = []

    class Told:
        def __init__(self, name: str, error: KeroloxError | None = None) -> None:
            self.name, self.error = name, error

        async def lead(self) -> None:
            told.append(f"{self.name} leads")
            if self.error is not None:
                raise self.error

        async def follow(self) -> None:
            told.append(f"{self.name} follows")

    async with MessageStore(BrokerOptions(store_path=str(tmp_path))) as store:
        leadership = Leadership(store, BrokerRole.ASYNC_MASTER)
        broken = Told("second", KeroloxError("a table is lost"))
        leadership.add(Told("first"), broken, Told("third"))
        with pytest.raises(KeroloxError, match="a table is lost"):
            await leadership.start()
        assert not leadership.leads
        assert not store.state.writable
        assert told == ["first leads", "second leads", "second follows", "first follows"]
        told.clear()
        broken.error = None
        await leadership.lead()
        await leadership.lead()
        await leadership.follow("another one leads")
        await leadership.follow("another one leads")
        assert told == [
            "first leads", "second leads", "third leads", "third follows", "second follows", "first follows",
        ]  # fmt: skip


class FailingPart:
    """A part that notes its role, and can fail to begin or to end."""

    def __init__(self) -> None:
        self.role = ""
        self.error: dict[str, Exception] = {}

    async def lead(self) -> None:
        self._become("leads")

    async def follow(self) -> None:
        self._become("follows")

    def _become(self, role: str) -> None:
        self.role = role
        if role in self.error:
            raise self.error[role]


@pytest.mark.parametrize("error", [KeroloxError("a table is not saved"), ValueError("a table is not saved")])
async def test_parts_end_although_one_of_them_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with MessageStore(BrokerOptions(store_path=str(tmp_path))) as store:
        leadership = Leadership(store, BrokerRole.ASYNC_MASTER)
        link, parts = NotedLink(), [FailingPart() for _ in range(3)]
        leadership.follow_by(link)
        leadership.add(*parts)
        await leadership.start()
        link.told.clear()
        parts[2].error["follows"] = error
        await leadership.follow("another one leads")
        assert not leadership.leads
        assert store.state.obstacles == {Obstacle.FOLLOWER: "another one leads"}
        assert [part.role for part in parts] == ["follows"] * 3
        assert link.told == ["start"]
        assert "part_not_ended part=FailingPart error='a table is not saved'" in caplog.text
        await leadership.lead()
        assert store.state.writable
        assert [part.role for part in parts] == ["leads"] * 3
        with pytest.raises(type(error), match="a table is not saved"):
            await leadership.stop()  # the caller of a stop that fails learns of it
        assert [part.role for part in parts] == ["follows"] * 3


async def test_a_part_that_fails_twice_leaves_a_follower(tmp_path: Path) -> None:
    async with MessageStore(BrokerOptions(store_path=str(tmp_path))) as store:
        leadership = Leadership(store, BrokerRole.ASYNC_MASTER)
        link, first, second = NotedLink(), FailingPart(), FailingPart()
        leadership.follow_by(link)
        leadership.add(first, second)
        second.error = {"leads": KeroloxError("a table is lost"), "follows": KeroloxError("it did not begin")}
        with pytest.raises(KeroloxError, match="a table is lost"):
            await leadership.start()
        assert (leadership.leads, first.role, link.told) == (False, "follows", ["stop", "start"])
        assert store.state.obstacles == {Obstacle.FOLLOWER: "this broker could not lead: a table is lost"}
        assert leadership.role.why == "this broker could not lead: a table is lost"


async def test_a_controller_that_does_not_answer_while_a_broker_begins_to_lead_bars_nothing(
    tmp_path: Path,
) -> None:
    async with MessageStore(BrokerOptions(store_path=str(tmp_path))) as store:
        leadership = Leadership(store, BrokerRole.SLAVE, elected=True)
        leadership.wait("no controller has been asked yet")

        class Slow(FailingPart):
            async def lead(self) -> None:
                leadership.wait("no controller answers")

        leadership.add(Slow())
        await leadership.lead()
        assert (leadership.leads, leadership.waits_for, store.state.obstacles) == (True, "", {})


async def test_a_promotion_that_fails_leaves_the_follower_its_id(tmp_path: Path) -> None:
    """With the id 0 it would register as a leader."""
    async with MessageStore(BrokerOptions(store_path=str(tmp_path))) as store:
        leadership = Leadership(store, BrokerRole.SLAVE, 3)
        part = FailingPart()
        leadership.add(part)
        part.error["leads"] = KeroloxError("a table is lost")
        with pytest.raises(KeroloxError, match="a table is lost"):
            await leadership.take_role(RoleChange(BrokerRole.SYNC_MASTER, 0))
        assert (leadership.leads, leadership.id) == (False, 3)
        assert not store.acks.wait_for_replicas
        part.error.clear()
        await leadership.take_role(RoleChange(BrokerRole.SYNC_MASTER, 0))
        assert (leadership.leads, leadership.id, store.acks.wait_for_replicas) == (True, 0, True)
        await leadership.take_role(RoleChange(BrokerRole.ASYNC_MASTER, 0))
        assert (leadership.leads, store.acks.wait_for_replicas) == (True, False)
        await leadership.take_role(RoleChange(BrokerRole.SLAVE, 4))
        assert (leadership.leads, leadership.id) == (False, 4)
        await leadership.take_role(RoleChange(BrokerRole.SLAVE, 5))
        assert (leadership.leads, leadership.id) == (False, 5)


@pytest.mark.parametrize(
    "test",
    [
        r"BrokerRole\.(SLAVE|ASYNC_MASTER|SYNC_MASTER)",
        r"(?<!leadership)(?<!kerolox\.broker)\.role\b(?! *[:=] )",
        r"Obstacle\.FOLLOWER",
        r"broker_id *(==|!=|>|<|is|not)|(if|not|and|or) [a-z_.]*options\.broker_id",
    ],
)
def test_nobody_else_asks_for_the_role(test: str) -> None:
    """Options name the roles; only the room of the role knows what they mean."""
    root = Path(kerolox.broker.__file__).parent
    found = {
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(test, line) and path.parent.name != "role"
    }
    allowed = {
        'options.py: BrokerRole.ASYNC_MASTER, "Role: leader or follower.", key="brokerRole", changeable=True',
    }
    assert found <= allowed


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        (r"(leadership|self)\.role = ", "role/leadership.py"),
        (r"\.lead_by\(|link\.part\(", "role/leadership.py"),  # where the log is copied from
        (r"(in_sync|confirming)\.rest\(", "role/leadership.py"),
        (r"in_sync\.lead\(", "controlled/elections.py"),  # passed to the leadership, which calls it
        (r"(replication\.leader|copies)\.lead\(", None),
        (r"\bRole\(", "role/leadership.py"),
    ],
)
def test_the_role_changes_in_one_place(changes: str, allowed: str | None) -> None:
    root = Path(kerolox.broker.__file__).parent
    found = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if re.search(changes, path.read_text())
    }
    assert found == ({allowed} if allowed else set())


class NotedLink:
    """A link that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def start(self) -> None:
        self.told.append("start")

    async def stop(self) -> None:
        self.told.append("stop")

    def lead_by(self, ha_address: str, broker_address: str) -> None:
        self.told.append(f"{ha_address} {broker_address}")

    def part(self) -> None:
        self.told.append("part")


async def test_a_leader_told_of_while_a_broker_parts_is_news_when_it_is_found_again(tmp_path: Path) -> None:
    """A name server may tell of it while the link stops; the link forgets that."""
    store = MessageStore(BrokerOptions(store_path=str(tmp_path)))
    await store.open()
    leadership = Leadership(store, BrokerRole.SLAVE, 2)
    leader = LeaderAddress("10.0.0.1:10911", "10.0.0.1:10912")
    heard: list[LeaderAddress | None] = []
    leadership.on_leader.append(heard.append)

    class TellingLink(NotedLink):
        async def stop(self) -> None:
            leadership.led_by(leader)

    leadership.follow_by(TellingLink())
    await leadership.start()
    await leadership.part()
    assert heard == [leader]
    leadership.led_by(leader)
    assert heard == [leader, leader]
    await leadership.stop()
    await store.close()


async def test_a_leader_that_announces_its_return_is_copied_from_before_it_serves(tmp_path: Path) -> None:
    async with MessageStore(BrokerOptions(store_path=str(tmp_path))) as store:
        leadership, link = Leadership(store, BrokerRole.SLAVE, 2), NotedLink()
        heard: list[LeaderAddress | None] = []
        leadership.on_leader.append(heard.append)
        leadership.follow_by(link)
        await leadership.start()
        link.told.clear()
        old, back = LeaderAddress("old:1", "old:2"), LeaderAddress("back:1", "back:2")
        leadership.led_by(old)
        assert leadership.announced(back)
        assert (leadership.leader, leadership.role.returning) == (None, back)
        leadership.led_by(None)  # name servers do not know it yet
        assert leadership.role.returning == back
        leadership.led_by(back)
        assert (leadership.leader, leadership.role.returning) == (back, None)
        assert leadership.announced(back)  # it is the leader already
        assert leadership.announced(old)
        leadership.led_by(back)
        assert heard == [old, None, back, None, back]
        assert link.told == [
            "old:2 old:1", "back:2 back:1", "back:2 back:1", "old:2 old:1", "back:2 back:1",
        ]  # fmt: skip
        await leadership.lead()
        assert not leadership.announced(old)
        assert leadership.role.leader is leadership.role.returning is None


async def test_whom_a_broker_followed_before_it_led_is_not_copied_from_again(tmp_path: Path) -> None:
    """Under a controller another one leads now: the old leader may not know, and would count this copy."""
    store = MessageStore(BrokerOptions(store_path=str(tmp_path)))
    await store.open()
    link = NotedLink()
    leadership = Leadership(store, BrokerRole.SLAVE, 2)
    leadership.follow_by(link)
    await leadership.start()

    async def fails() -> None:
        raise KeroloxError("the disk is gone")

    with pytest.raises(KeroloxError, match="the disk is gone"):
        await leadership.lead(fails)
    assert (leadership.leads, link.told) == (False, ["start", "stop", "part", "start"])
    await leadership.lead()
    link.told.clear()
    await leadership.follow("another one leads", leaderless=True)
    assert link.told == ["part", "start"]
    await leadership.part()
    assert link.told == ["part", "start", "stop", "part", "start"]
    await leadership.stop()
    await store.close()
