"""A leader and its follower with clients of every kind at work, while files of the leader fail for a while.

One scene goes through many places, one after the other: messages are sent, the fault begins, more are sent
and asked for, it ends, and the checker looks whether a promise was broken. The clock is the test's, so that
delays, timers, check-backs and retries of the store take no real time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from kerolox import ClientOptions, PushConsumer, PushOptions, Received
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
from tests.rig.ports import free_ports

from .places import Fault, Place
from .witnesses import Lines, Reader, Sent

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
PATIENCE_S = 30.0  # of real time, for what threads and sockets have to do...
PATIENCE_STEPS = 120  # ...and steps of a second, which take longer where others need the cores
LINES_MAX = 40  # warnings and errors of one place...
LINES_OF_ONE_MAX = 8  # ...and of one word
_FENCED = "fenced: "  # in the words of a broker
RESETTERS, PUSH, ORDERED = "resetters", "push", "ordered-push"  # groups
KINDS = (Kind.LOG, Kind.QUEUE, Kind.INDEX, Kind.CHECKPOINT, Kind.SUMS, Kind.TIMER, Kind.NOTE, Kind.TABLE)


class Scene:
    big = BIG

    def __init__(
        self, leader: RunningBroker, follower: RunningBroker | None, clock: ManualClock, files: FaultyFiles
    ) -> None:
        self.leader = leader
        self.follower = follower
        self.clock = clock
        self.files = files
        self.lines = Lines(clock)
        self._is_shown = False
        self.sent = Sent(TOPICS)
        self.seen: dict[str, Counter[bytes]] = {PUSH: Counter(), ORDERED: Counter()}  # by push consumers
        self.readers = [Reader(topic) for topic in TOPICS]
        self.restarts = 0
        self.hits = 0  # operations that failed at the last place
        self.wrong: list[str] = []
        self.talk: Talk
        self.payer: Producer
        self._number = 0
        self._known: tuple[bytes, int, int] = (b"", 0, 0)  # a plain message: its body, offset and store time
        self._half_of: dict[bytes, Half] = {}

    async def set_up(self, stack: AsyncExitStack) -> None:
        """Make the topics, and let the clients begin."""
        self.talk = Talk(await stack.enter_async_context(Dialer()), self.leader)
        self.payer = Producer(self.leader)
        stack.push_async_callback(self.payer.dialer.close)
        await self.payer.come()
        self.payer.outcome = COMMIT
        for topic in TOPICS:
            await self.leader.create_topic(topic, queues=1)
        names = self.leader.nameserver_address
        client = ClientOptions(nameservers=names, route_refresh_s=0.5, heartbeat_s=1.0)
        for name, seen in self.seen.items():
            push = PushOptions(start="first", error_pause_s=0.02, workers=1, ordered=name == ORDERED)
            consumer = await stack.enter_async_context(PushConsumer(client, group=name, options=push))

            async def take(message: Received, seen: Counter[bytes] = seen) -> None:
                seen[message.body] += 1

            for topic in TOPICS:
                consumer.subscribe(topic, take)

    # --- one place --------------------------------------------------------------------------------------

    async def run(self, place: Place) -> list[str]:
        """Go through a place; what is wrong."""
        await self._begin()
        before = self.files.fault_hits
        doomed = f"doomed{self._number}"
        self._tighten()
        if place.operation is Operation.REMOVE:
            self._age()
        if self._deletes(place):
            await self._passing(self._send_to(doomed))
        self.files.fault = Fault(place.kind, place.operation, place.number)
        self._is_shown = False
        for step in range(STEPS):
            await self._passing(asyncio.gather(self._send(), self._ask(step)))
            self._is_shown |= bool(await self._ills())
            if step == 1:
                await self._passing(self._administer(place, doomed))
            await self._passing(self.clock.advance(1))
            self._is_shown |= bool(await self._ills())
        self.files.fault = None
        hits = self.hits = self.files.fault_hits - before
        await self._check_during(place)
        await self._recover(place)
        await self._check_after(place)
        self._check_lines(place, hits)
        return [f"{place.name} ({hits} failed): {what}" for what in self.wrong]

    async def run_start(self, place: Place) -> list[str]:
        """Go through a place while the broker stops and starts; what is wrong."""
        await self._begin()
        before = self.files.fault_hits
        self.files.fault = Fault(place.kind, place.operation, place.number)
        await self._passing(self.leader.stop())
        refused = await self._passing(self._start())
        if refused is None:
            await self._passing(asyncio.gather(self._send(), self._ask(0)))
            await self._passing(self.clock.advance(1))
        self.files.fault = None
        hits = self.hits = self.files.fault_hits - before
        if refused is not None:
            words = {errno.errorcode[place.number], os.strerror(place.number)}
            if place.number == errno.ENOENT:
                words.add("was lost")  # a table of which no copy is left
            if not any(word in refused for word in words):
                self.wrong.append(f"the start is refused without the reason: {refused}")
            if (again := await self._passing(self._start())) is not None:
                self.wrong.append(f"the start is still refused after the fault: {again}")
                await self.leader.start()
        self.restarts += 1
        await self.payer.come()
        await self._recover(place)
        await self._check_after(place)
        return [f"{place.name} at a start ({hits} failed): {what}" for what in self.wrong]

    async def _start(self) -> str | None:
        """Start the broker; why it does not."""
        try:
            await self.leader.start()
        except KeroloxError as error:
            return str(error)
        return None

    async def _begin(self) -> None:
        self.wrong = []
        self.lines.begin()
        self.sent.refused.clear()
        self.sent.unanswered = 0
        await self._passing(self._send(keep=True))
        await self._passing(self.clock.advance(1))
        if self.sent.refused:
            self.wrong.append(f"sends are refused before the fault: {dict(self.sent.refused)}")

    @staticmethod
    def _deletes(place: Place) -> bool:
        return place.kind in (Kind.NOTE, Kind.QUEUE, Kind.SUMS) and place.operation is not Operation.READ

    def _tighten(self) -> None:
        """Let files be opened again and again."""
        self.store._open_files.limit = 2

    async def _clean(self) -> None:
        await self.store.expiry.run()

    def _age(self) -> None:
        """Let all files of the log but the last two expire. All readers have passed them."""
        for segment in self.store.segments.all[:-2]:
            self.files.set_mtime(segment.path, self.clock.wall_ms() / 1000 - 7200)
        self.store.expiry.order()

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
            self._send_one(PLAIN, b"p%b." % number + self.big, {"KEYS": f"key{self._number}"}),
            self._send_one(DELAYED, b"d" + number, {"DELAY": "1"}),
            self._send_one(TIMED, b"t" + number, {"TIMER_DELAY_MS": "1500"}),
            self._send_half(b"c" + number, ends=True),
            self._send_half(b"u" + number, ends=False),
        )
        if keep and plain is not None and plain.code == 0:
            self._known = (b"p%b." % number + self.big, int(plain.fields["queueOffset"]), stored_ms)

    async def _send_one(self, topic: str, body: bytes, properties: dict[str, str]) -> Command | None:
        answer = await self._call(self.talk.send(topic, body, properties))
        self.sent.note(topic, body, answer)
        return answer

    async def _send_half(self, body: bytes, *, ends: bool) -> None:
        own = {"TRAN_MSG": "true", "PGROUP": GROUP}
        answer = await self._call(
            self.payer.send(ORDERS, body, own, sys_flag=4, born_timestamp=self.clock.wall_ms())
        )
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
                self.wrong.append(
                    f"{name} at {stored_ms} for offset {offset} was answered with {answer!r} {answer.fields} "
                    f"{answer.remark!r} {answer.body[:200]!r}"
                )

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
            await self._clean()
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

    async def _ills(self) -> str:
        """What the broker says that does not work, in words; empty when all does."""
        store = self.store
        reasons = [f"{obstacle.value}: {why}" for obstacle, why in store.state.obstacles.items()]
        lasting = [f"unreadable: {why}" for _, why in store.reads.lasting.values()]
        return "; ".join([*reasons, *store.failing.reasons(), *lasting])

    async def _check_during(self, place: Place) -> None:
        row, ills = place.row, await self._ills()
        if _FENCED in ills and row.action is not Action.FENCE:
            self.wrong.append(f"the store is fenced: {ills}")
        if (
            row.action not in (Action.FENCE, Action.REFUSE)
            and self.sent.refused
            and place.kind is not Kind.LOCK
        ):
            self.wrong.append(f"sends were refused: {dict(self.sent.refused)} {ills}")
        if self.sent.unanswered and _FENCED not in ills:
            self.wrong.append(f"{self.sent.unanswered} sends got no answer")

    async def _recover(self, place: Place) -> None:
        if _FENCED in await self._ills():
            self.restarts += 1
            await self.leader.stop()
            await self.leader.start()
            await self.payer.come()
        for step in range(1, RECOVER_STEPS + 1):
            ills = await self._ills()
            if not ills or step % 10 == 0:  # of a failed append only another one tells that it is over
                self.sent.refused.clear()
                await self._passing(self._send(keep=True))
                if not (ills or self.sent.refused):
                    return
            await self._passing(self.clock.advance(1))
            await asyncio.sleep(0.002)
        self.wrong.append(f"not over after {RECOVER_STEPS} s: {ills} {dict(self.sent.refused)}")

    async def _check_after(self, place: Place) -> None:
        until_s, steps = time.monotonic() + PATIENCE_S, 0
        while missing := await self._missing():
            if steps > PATIENCE_STEPS and time.monotonic() > until_s:
                self.wrong += missing
                break
            steps += 1
            await self._passing(self.clock.advance(1))
            await self._read_on()
            await asyncio.sleep(0.005)
        for reader in self.readers:
            self.wrong += reader.wrong
            reader.wrong.clear()
            self._check_doubles(reader)
            reader.bodies.clear()
        for topic in TOPICS:
            self.sent.taken[topic].clear()
        if not self.restarts:
            for name, seen in self.seen.items():
                if twice := [body[:20] for body, times in seen.items() if times > 1]:
                    self.wrong.append(f"{name} got some twice: {twice[:5]}")
        self.restarts = 0
        for seen in self.seen.values():
            seen.clear()
        if self._made and not await self._has_topic(self._made):
            self.wrong.append(f"topic {self._made} was made, and is not there")
        self._made = ""

    async def _read_on(self) -> None:
        try:
            await self.payer.come()  # as producers do by interval
            for reader in self.readers:
                while await reader.pull(self.talk):
                    pass
        except KeroloxError:
            return  # no answer: asked again

    async def _missing(self) -> list[str]:
        wrong = []
        for reader in self.readers:
            taken = self.sent.taken[reader.topic]
            for who, had in (("the reader", set(reader.bodies)), *self.seen.items()):
                if lost := taken.difference(had):
                    wrong.append(
                        f"{reader.topic}: {who} did not get {len(lost)} of {len(taken)}: "
                        f"{sorted(body[:12] for body in lost)[:4]}"
                    )
        if await self._is_follower_behind():
            wrong.append("the follower does not have all of the log")
        return wrong

    async def _is_follower_behind(self) -> bool:
        follower = self.follower
        return follower is not None and follower.broker.store.log.max_offset != self.store.log.max_offset

    async def _has_topic(self, name: str) -> bool:
        return self.leader.broker.tables.topics.find(name) is not None

    def _check_doubles(self, reader: Reader) -> None:
        twice = [body[:12] for body, times in Counter(reader.bodies).items() if times > 1]
        # After a restart what was delivered and not yet noted may come again.
        if twice and not self.restarts:
            self.wrong.append(f"{reader.topic}: stored twice: {twice[:5]}")

    def _check_lines(self, place: Place, hits: int) -> None:
        words, row = self.lines.words, place.row
        if words.total() > LINES_MAX or max(words.values(), default=0) > LINES_OF_ONE_MAX:
            self.wrong.append(f"too many log lines: {dict(words)}")
        if hits < 2 or (row.action is Action.ANSWER and place.kind is not Kind.LOG):
            return  # the one that met it was answered, or it passed with the second try
        # A file that was opened to be written is read by the same handle.
        lines = {row.line, "store_unreadable"} - {""}
        if lines and not self.lines.has_any(*lines):
            self.wrong.append(f"no line {row.line}, but {dict(words)}")
        if row.gauge and not self._is_shown and not lines & words.keys():
            self.wrong.append("neither /healthz nor a gauge shows it")

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
                    directory=folder / "follower", nameserver=leader.nameserver, brokerRole="SLAVE",
                    brokerId=1, files=FaultyFiles(), **options,
                )
            )  # fmt: skip
        made = Scene(leader, follower, clock, files)
        leader.broker.tables.groups.put(GroupConfig(group_name=RESETTERS))
        await made.set_up(stack)
        log = logging.getLogger("kerolox")
        log.addHandler(made.lines)
        stack.callback(log.removeHandler, made.lines)
        yield made
