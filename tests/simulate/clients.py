"""Who sends and reads: each message once, to whichever broker took the last one; and all that was told is
noted.

A message that was not acknowledged is not sent again: whether it is there is open, and it may be there
once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kerolox.errors import KeroloxError, RequestTimeout
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.record import decode_records
from tests.rig.history import OK, History, Send, place_of

from .world import Host, World

TOPIC, GROUP, QUEUES = "orders", "readers", 2
SUBSCRIBED = 4  # of a pull: it brings its own subscription
STATUS = {
    ResponseCode.SUCCESS: OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}


@dataclass(frozen=True)
class Sent(Send):
    """One try, and who was asked."""

    by: str = ""  # the broker's address


@dataclass(frozen=True)
class Seen:
    """A message that was read."""

    body: bytes
    queue: int
    offset: int
    by: str
    at_s: float


@dataclass
class Told:
    """All of it."""

    history: History = field(default_factory=History)
    seen: list[Seen] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)  # queue → the highest offset that was committed


class Client:
    """A process that sends or reads until it is told to stop."""

    def __init__(
        self, world: World, host: Host, brokers: Sequence[str], told: Told, chance: random.Random
    ) -> None:
        self.host = host
        self.told = told
        self.is_over = False
        self._world = world
        self._brokers = list(brokers)
        self._chance = chance
        self._number = 0

    def start(self, *, senders: int, readers: int, pause_s: float) -> None:
        process = self.host.begin()
        loop = self._world.loop

        async def run() -> None:
            self._dialer = Dialer(clock=self.host.clock, connect_timeout_s=1.0)
            for _ in range(senders):
                loop.start(process, self._send_many(pause_s))
            for queue in range(min(readers, QUEUES)):
                loop.start(process, self._read(queue))

        loop.start(process, run())

    # --- sends ----------------------------------------------------------------------------------------------

    async def _send_many(self, pause_s: float) -> None:
        broker = self._chance.choice(self._brokers)
        while not self.is_over:
            sent = await self.send(broker)
            if not sent.stored:
                broker = self._chance.choice(self._brokers)
                await asyncio.sleep(self._chance.uniform(0.01, 0.3))
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))

    async def send(self, broker: str) -> Sent:
        """One message, once."""
        self._number += 1
        body = b"%s-%d." % (self.host.name.encode(), self._number)
        body += b"x" * int(self._chance.paretovariate(1.0) * 20 % 2000)
        asked = SendRequestV2(
            producer_group="senders",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=QUEUES,
            queue_id=self._chance.randrange(QUEUES),
            sys_flag=0,
            born_timestamp=self.host.clock.wall_ms(),
            flag=0,
            properties="",
        )
        began_s = self._world.loop.time()
        status, queue, offset, place = "", -1, -1, -1
        try:
            answer = await self._dialer.call(broker, RequestCode.SEND_MESSAGE_V2, asked, body, timeout_s=4.0)
            status = STATUS.get(ResponseCode(answer.code), f"code {answer.code}")
            if answer.code in STATUS:
                header = answer.header(SendAnswer)
                queue, offset, place = header.queue_id, header.queue_offset, place_of(header.msg_id)
        except RequestTimeout:
            status = "timeout"
        except KeroloxError as error:
            status = type(error).__name__
        ended_s = self._world.loop.time()
        sent = Sent(self.host.name, body, began_s, ended_s, status, queue, offset, place, broker, by=broker)
        self.told.history.add(sent)
        if self._world.traces:
            self._world.tell(
                f"send {body[:12]!r} to {broker}: {status} queue={queue} offset={offset} place={place}"
            )
        return sent

    # --- reads ----------------------------------------------------------------------------------------------

    async def _read(self, queue: int) -> None:
        """The queue from its beginning, from whoever answers; begun anew now and then."""
        offset = 0
        while not self.is_over:
            broker = self._chance.choice(self._brokers)
            try:
                offset = await self._pull(broker, queue, offset)
                if offset and self._chance.random() < 0.3:
                    await self._commit(broker, queue, offset)
            except KeroloxError:
                pass
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))

    async def _pull(self, broker: str, queue: int, offset: int) -> int:
        asked = PullRequest(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=queue,
            queue_offset=offset,
            max_msg_nums=16,
            sys_flag=SUBSCRIBED,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )
        answer = await self._dialer.call(broker, RequestCode.PULL_MESSAGE, asked, timeout_s=2.0)
        if answer.code != ResponseCode.SUCCESS:
            return offset
        now_s = self._world.loop.time()
        for message in decode_records(answer.body):
            self.told.seen.append(Seen(message.body, queue, message.queue_offset, broker, now_s))
            offset = max(offset, message.queue_offset + 1)
        return offset

    async def _commit(self, broker: str, queue: int, offset: int) -> None:
        asked = UpdateOffsetRequest(consumer_group=GROUP, topic=TOPIC, queue_id=queue, commit_offset=offset)
        answer = await self._dialer.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, asked, timeout_s=2.0)
        if answer.code == ResponseCode.SUCCESS:
            self.told.committed[queue] = max(offset, self.told.committed.get(queue, 0))
