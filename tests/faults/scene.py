"""A leader and its follower with clients of every kind at work, while files of the leader fail for a while.

One scene goes through many places, one after the other: messages are sent, the fault begins, more are sent
and asked for, it ends, and the checker looks whether a promise was broken. The clock is the test's, so that
delays, timers, check-backs and retries of the store take no real time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from kerolox import PushConsumer, PushOptions, Received
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.offsets import ResetOffsets
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers import offset as offset_headers
from kerolox.protocol.headers.query import QueryMessageRequest
from kerolox.protocol.headers.topic import DeleteTopicRequest
from kerolox.protocol.record import decode_records
from kerolox.store.errors import Operation
from kerolox.store.failures import Action, Kind
from kerolox.store.options import FlushMode
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles
from tests.broker.talk import BORN_MS, Talk
from tests.broker.transaction_kit import COMMIT, GROUP, Half, Producer
from tests.peers.processes import free_ports

from .places import Fault, Place

T = TypeVar("T")

PLAIN, DELAYED, TIMED, ORDERS = TOPICS = ("plain", "delayed", "timed", "orders")
BIG = bytes(9 << 10)  # of a plain message: the log gets a new file at every place
OPTIONS: dict[str, Any] = {
    "commit_log_file_bytes": 64 << 10,
    "queue_file_bytes": 200 * 20,
    "timer_log_file_bytes": 52 * 6 + 16,
    "index_entries": 8,
    "index_slots": 10,
    "keep_hours": 1,
    "transaction_check_ms": 3000,
    "transaction_timeout_ms": 1000,
    "transaction_checks_max": 1000,
    "member_timeout_ms": 10**10,
    "idle_s_max": 10**7,
    "server_side_reset": True,
    "save_offsets_ms": 1000,
}
STEPS = 4  # of a second each, while a fault lasts
RECOVER_STEPS = 90  # of a second each: then it must be over
PATIENCE_S = 30.0  # of real time, for what threads and sockets have to do
LINES_MAX = 40  # warnings and errors of one place...
LINES_OF_ONE_MAX = 8  # ...and of one word
RESETTERS = "resetters"
KINDS = (Kind.LOG, Kind.QUEUE, Kind.INDEX, Kind.CHECKPOINT, Kind.SUMS, Kind.TIMER, Kind.NOTE, Kind.TABLE)


class Lines(logging.Handler):
    """Counts warnings and errors by their first word."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.words: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("kerolox.client"):  # they tell of every broker
            self.words[record.getMessage().split(" ", 1)[0]] += 1


class Reader:
    """Pulls one queue and notices what it is made to skip."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.offset = 0
        self.bodies: list[bytes] = []
        self.wrong: list[str] = []

    async def pull(self, talk: Talk) -> bool:
        """One pull; whether it brought messages."""
        answer = await talk.pull(self.topic, 0, self.offset, consumer_group="readers")
        after = int(answer.fields.get("nextBeginOffset", self.offset))
        if answer.code != 0:
            if answer.code in _MOVES and after != self.offset:
                self.wrong.append(
                    f"{self.topic}: a pull at {self.offset} was sent to {after} ({answer.remark})"
                )
                self.offset = after
            return False
        found = decode_records(answer.body)
        if [message.queue_offset for message in found] != list(range(self.offset, after)):
            self.wrong.append(f"{self.topic}: a pull at {self.offset} skipped some before {after}")
        self.bodies += [message.body for message in found]
        self.offset = after
        return True


_MOVES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Sent:
    """Answers that producers got, by topic."""

    def __init__(self) -> None:
        self.taken: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.refused: Counter[int] = Counter()  # by answer code, of the current place
        self.unanswered = 0

    def note(self, topic: str, body: bytes, answer: Command | None) -> bool:
        if answer is None:
            self.unanswered += 1
        elif answer.code == 0:
            self.taken[topic].add(body)
            return True
        else:
            self.refused[answer.code] += 1
        return False


class Scene:
    def __init__(
        self, leader: RunningBroker, follower: RunningBroker | None, clock: ManualClock, files: FaultyFiles
    ) -> None:
        self.leader = leader
        self.follower = follower
        self.clock = clock
        self.files = files
        self.lines = Lines()
        self.sent = Sent()
        self.seen: Counter[bytes] = Counter()  # by the push consumer
        self.readers = [Reader(topic) for topic in TOPICS]
        self.restarts = 0
        self.reached: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.talk: Talk
        self.payer: Producer
        self._number = 0
        self._known: tuple[bytes, int, int] = (b"", 0, 0)  # a plain message: its body, offset and store time
        self._half_of: dict[bytes, Half] = {}

    # --- one place --------------------------------------------------------------------------------------

    async def run(self, place: Place) -> list[str]:
        """Go through a place; what is wrong."""
        self.wrong = []
        self.lines.words.clear()
        self.sent.refused.clear()
        self.sent.unanswered = 0
        before = self.files.fault_hits
        await self._passing(self._send(keep=True))
        await self._passing(self.clock.advance(1))
        if self.sent.refused:
            self.wrong.append(f"sends are refused before the fault: {dict(self.sent.refused)}")
        doomed = f"doomed{self._number}"
        self.store._open_files.limit = 2  # so that files are opened again and again
        if place.operation is Operation.REMOVE:
            self._age()
        if self._deletes(place):
            await self._passing(self._send_to(doomed))
        self.files.fault = Fault(place.kind, place.operation, place.number)
        for step in range(STEPS):
            await self._passing(asyncio.gather(self._send(), self._ask(step)))
            if step == 1:
                await self._passing(self._administer(place, doomed))
            await self._passing(self.clock.advance(1))
        self.files.fault = None
        hits = self.files.fault_hits - before
        self.reached["reached" if hits else "not reached"] += 1
        self._check_during(place)
        await self._recover(place)
        await self._check_after(place)
        self._check_lines(place)
        return [f"{place.name} ({hits} failed): {what}" for what in self.wrong]

    @staticmethod
    def _deletes(place: Place) -> bool:
        return place.kind in (Kind.NOTE, Kind.QUEUE, Kind.SUMS) and place.operation is not Operation.READ

    def _age(self) -> None:
        """Let all files of the log but the last two expire. All readers have passed them."""
        for segment in self.store.segments.all[:-2]:
            self.files.set_mtime(segment.path, self.clock.wall_ms() / 1000 - 7200)
        self.store.housekeeper.order_deletion()

    async def _passing(self, work: Awaitable[T]) -> T | None:
        """Do this while time passes, as slowly as threads and sockets need."""
        task = asyncio.ensure_future(work)
        until_s = time.monotonic() + PATIENCE_S
        wait_s = 0.02
        while not (await asyncio.wait({task}, timeout=wait_s))[0]:
            if time.monotonic() > until_s:
                task.cancel()
                self.wrong.append("a request hangs")
                return None
            await self.clock.advance(0.5)
            wait_s = min(0.2, wait_s * 1.5)
        return task.result()

    # --- what clients do ---------------------------------------------------------------------------------

    async def _send(self, *, keep: bool = False) -> None:
        self._number += 1
        number = b"%d" % self._number
        stored_ms = self.clock.wall_ms()
        plain, *_ = await asyncio.gather(
            self._send_one(PLAIN, b"p%b." % number + BIG, {"KEYS": f"key{self._number}"}),
            self._send_one(DELAYED, b"d" + number, {"DELAY": "1"}),
            self._send_one(TIMED, b"t" + number, {"TIMER_DELAY_MS": "1500"}),
            self._send_half(b"c" + number, ends=True),
            self._send_half(b"u" + number, ends=False),
        )
        if keep and plain is not None and plain.code == 0:
            self._known = (b"p%b." % number + BIG, int(plain.fields["queueOffset"]), stored_ms)

    async def _send_one(self, topic: str, body: bytes, properties: dict[str, str]) -> Command | None:
        answer = await self._call(self.talk.send(topic, body, properties))
        self.sent.note(topic, body, answer)
        return answer

    async def _send_half(self, body: bytes, *, ends: bool) -> None:
        own = {"TRAN_MSG": "true", "PGROUP": GROUP}
        answer = await self._call(self.payer.send(ORDERS, body, own, sys_flag=4, born_timestamp=BORN_MS))
        if self.sent.note(ORDERS, body, answer) and ends:
            assert answer is not None
            await self._call(self.payer.end(Half(answer)))  # when this fails, the broker asks

    async def _send_to(self, topic: str) -> None:
        await self._call(self.talk.send(topic, b"x"))

    async def _call(self, asking: Coroutine[Any, Any, Command]) -> Command | None:
        try:
            return await asking
        except KeroloxError:
            return None  # no answer

    async def _ask(self, step: int) -> None:
        for reader in self.readers:
            try:
                await reader.pull(self.talk)
            except KeroloxError:
                continue
        if not self._known[0]:
            return
        body, offset, stored_ms = self._known
        key = body.partition(b".")[0].decode().replace("p", "key")
        query = QueryMessageRequest(
            topic=PLAIN, key=key, max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1, unique_key=False
        )
        search = offset_headers.SearchOffsetRequest(topic=PLAIN, queue_id=0, timestamp=stored_ms)
        reset = offset_headers.ResetOffsetRequest(
            topic=PLAIN, group=RESETTERS, timestamp=stored_ms, is_force=True
        )
        for name, code, header in (
            ("a query by key", RequestCode.QUERY_MESSAGE, query),
            ("a search by time", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search),
            ("a reset by time", RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset),
        ):
            answer = await self._call(self.talk.dialer.call(self.talk.address, code, header, timeout_s=10))
            if answer is not None and not self._is_right(code, answer, body, offset):
                self.wrong.append(f"{name} was answered with {answer!r} {answer.fields} {answer.remark!r}")

    @staticmethod
    def _is_right(code: RequestCode, answer: Command, body: bytes, offset: int) -> bool:
        """True for a correct answer, and for an error."""
        if code is RequestCode.QUERY_MESSAGE:
            if answer.code == 0:
                return body in [message.body for message in decode_records(answer.body)]
            return answer.code != ResponseCode.QUERY_NOT_FOUND
        if answer.code != 0:
            return True
        if code is RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            return int(answer.fields["offset"]) == offset
        return list(ResetOffsets.decode(answer.body).offset_table.values()) == [offset]

    async def _administer(self, place: Place, doomed: str) -> None:
        """Change tables; what is answered with success must be so afterwards."""
        name = f"new{self._number}"
        try:
            await self.leader.create_topic(name, queues=1)
        except KeroloxError:
            if place.kind is not Kind.TABLE and place.row.action is not Action.FENCE:
                self.wrong.append("a topic cannot be made, and no table fails")
        else:
            self._made = name
            await self._send_to(name)
        if place.operation is Operation.REMOVE:
            await self.store.housekeeper.run_clean()
        if self._deletes(place):
            header = DeleteTopicRequest(topic=doomed)
            await self._call(
                self.talk.dialer.call(
                    self.talk.address, RequestCode.DELETE_TOPIC_IN_BROKER, header, timeout_s=10
                )
            )

    _made = ""

    # --- what must be so ---------------------------------------------------------------------------------

    @property
    def store(self) -> Any:
        return self.leader.broker.store

    def _check_during(self, place: Place) -> None:
        row = place.row
        if self.store.state.fenced and row.action is not Action.FENCE:
            self.wrong.append(f"the store is fenced: {self.store.state.obstacles}")
        if (
            row.action not in (Action.FENCE, Action.REFUSE)
            and self.sent.refused
            and place.kind is not Kind.LOCK
        ):
            self.wrong.append(f"sends were refused: {dict(self.sent.refused)} {self.store.state.obstacles}")
        if self.sent.unanswered and not self.store.state.fenced:
            self.wrong.append(f"{self.sent.unanswered} sends got no answer")

    async def _recover(self, place: Place) -> None:
        if self.store.state.fenced:
            self.restarts += 1
            await self.leader.stop()
            await self.leader.start()
            await self.payer.come()
        for _ in range(RECOVER_STEPS):
            if self._is_well():
                break
            await self._passing(self.clock.advance(1))
            await asyncio.sleep(0.002)
        else:
            store = self.store
            self.wrong.append(
                f"not over after {RECOVER_STEPS} s: {store.state.obstacles} {store.failing.reasons()} "
                f"{store.reads.lasting}"
            )
        self.sent.refused.clear()
        await self._passing(self._send(keep=True))
        if self.sent.refused:
            self.wrong.append(f"sends are refused after the fault: {dict(self.sent.refused)}")

    def _is_well(self) -> bool:
        store = self.store
        return store.state.writable and not store.failing.current and not store.reads.lasting

    async def _check_after(self, place: Place) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while missing := self._missing():
            if time.monotonic() > until_s:
                self.wrong += missing
                break
            await self._passing(self.clock.advance(1))
            for reader in self.readers:
                while await reader.pull(self.talk):
                    pass
            await asyncio.sleep(0.005)
        for reader in self.readers:
            self.wrong += reader.wrong
            reader.wrong.clear()
            self._check_doubles(reader)
            reader.bodies.clear()
        for topic in TOPICS:
            self.sent.taken[topic].clear()
        if not self.restarts:
            twice = [body[:20] for body, times in self.seen.items() if times > 1]
            if twice:
                self.wrong.append(f"the push consumer got some twice: {twice[:5]}")
        self.restarts = 0
        self.seen.clear()
        if self._made and self.leader.broker.tables.topics.find(self._made) is None:
            self.wrong.append(f"topic {self._made} was made, and is not there")
        self._made = ""

    def _missing(self) -> list[str]:
        wrong = []
        for reader in self.readers:
            taken = self.sent.taken[reader.topic]
            for who, had in (("the reader", set(reader.bodies)), ("the push consumer", self.seen.keys())):
                if lost := taken - had:
                    wrong.append(
                        f"{reader.topic}: {who} did not get {len(lost)} of {len(taken)}: "
                        f"{sorted(body[:12] for body in lost)[:4]}"
                    )
        follower = self.follower
        if follower is not None and follower.broker.store.log.max_offset != self.store.log.max_offset:
            wrong.append("the follower does not have all of the log")
        return wrong

    def _check_doubles(self, reader: Reader) -> None:
        twice = [body[:12] for body, times in Counter(reader.bodies).items() if times > 1]
        # After a restart what was delivered and not yet noted may come again.
        if twice and not self.restarts:
            self.wrong.append(f"{reader.topic}: stored twice: {twice[:5]}")

    def _check_lines(self, place: Place) -> None:
        words = self.lines.words
        if words.total() > LINES_MAX or max(words.values(), default=0) > LINES_OF_ONE_MAX:
            self.wrong.append(f"too many log lines: {dict(words)}")

    async def same_logs(self) -> list[str]:
        """The bytes of both logs, at the end of a scene."""
        if self.follower is None:
            return []
        ours, theirs = self.leader.broker.store.segments, self.follower.broker.store.segments
        at = max(ours.min_offset, theirs.min_offset)
        while at < min(ours.wrote, theirs.wrote):
            size = min(ours.readable(at), theirs.readable(at))
            if ours.read(at, size) != theirs.read(at, size):
                return [f"the logs of leader and follower differ behind {at}"]
            at += size
        return []


@asynccontextmanager
async def scene(
    folder: Path, *, flush: FlushMode = FlushMode.ASYNC, ledger: bool = False
) -> AsyncIterator[Scene]:
    """``ledger``: a DLedger group of one in place of the leader and its follower."""
    clock, files = ManualClock(BORN_MS + 10**6), FaultyFiles()
    options = {**OPTIONS, "clock": clock, "flush_mode": flush}
    own: dict[str, Any] = {}
    if ledger:
        peers = f"n0-127.0.0.1:{free_ports(1)[0]}"
        own = {"ledger": True, "ledger_group": "broker-a", "ledger_self_id": "n0", "ledger_peers": peers}
    async with AsyncExitStack() as stack:
        leader = await stack.enter_async_context(
            running_broker(directory=folder / "leader", files=files, **options, **own)
        )
        follower = None
        if not ledger:
            follower = await stack.enter_async_context(
                running_broker(
                    directory=folder / "follower", nameserver=leader.nameserver, brokerRole="SLAVE", brokerId=1,
                    files=FaultyFiles(), **options,
                )
            )  # fmt: skip
        made = Scene(leader, follower, clock, files)
        made.talk = Talk(await stack.enter_async_context(Dialer()), leader)
        made.payer = Producer(leader)
        stack.push_async_callback(made.payer.dialer.close)
        await made.payer.come()
        made.payer.outcome = COMMIT
        for topic in TOPICS:
            await leader.create_topic(topic, queues=1)
        leader.broker.tables.groups.put(GroupConfig(group_name=RESETTERS))
        push = PushOptions(start="first", error_pause_s=0.02, workers=1)
        consumer = await stack.enter_async_context(
            PushConsumer(leader.nameserver_address, group="pushed", options=push)
        )

        async def take(message: Received) -> None:
            made.seen[message.body] += 1

        for topic in TOPICS:
            consumer.subscribe(topic, take)
        log = logging.getLogger("kerolox")
        log.addHandler(made.lines)
        stack.callback(log.removeHandler, made.lines)
        yield made
