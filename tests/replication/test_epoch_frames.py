"""Both ends against a peer that is not ours: what Apache's brokers send, byte by byte and at odd moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kerolox.protocol.ha_epochs import (
    Epoch,
    EpochPiece,
    FollowerFrames,
    Hello,
    LeaderFrames,
    Welcome,
    pack_epoch_head,
    pack_epoch_report,
    pack_hello,
    pack_welcome,
)
from kerolox.replication.link_state import LinkState
from kerolox.replication.turned_away import Why

from .epoch_kit import Replica, group, replica_at
from .kit import FILE, put, raw, store_at, until


class Peer:
    """A connection, and what came over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes, *, slowly: bool = False) -> None:
        for at in range(0, len(data), 1 if slowly else len(data)):
            self.writer.write(data[at : at + 1] if slowly else data)
            await self.writer.drain()
            if slowly:
                await asyncio.sleep(0)

    async def closed(self) -> None:
        async with asyncio.timeout(10):
            while await self.reader.read(1 << 16):
                pass

    def close(self) -> None:
        self.writer.transport.abort()


class RawFollower(Peer):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.frames = LeaderFrames()
        self.welcomes: list[Welcome] = []
        self.pieces: list[EpochPiece] = []

    @property
    def data(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    async def hear(self) -> None:
        async with asyncio.timeout(10):
            data = await self.reader.read(1 << 16)
        assert data, "closed"
        for said in self.frames.feed(data):
            if isinstance(said, Welcome):
                self.welcomes.append(said)
            else:
                self.pieces.append(said)


@asynccontextmanager
async def follower_of(leader: Replica) -> AsyncIterator[RawFollower]:
    follower = RawFollower(*await asyncio.open_connection("127.0.0.1", leader.port.port))
    try:
        yield follower
    finally:
        follower.close()


# --- our leader ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slowly", [False, True])
async def test_a_leader_answers_once_and_sends_epoch_by_epoch(tmp_path: Path, slowly: bool) -> None:
    async with group(tmp_path, 1) as (one,):
        await one.lead(1)
        put(one.store, 10)
        second = one.store.log.max_offset
        await one.history.begin(4, second)
        put(one.store, 10)
        third = one.store.log.max_offset
        await one.history.begin(6, third)
        async with follower_of(one) as follower:
            hello = pack_hello(Hello(2))
            await follower.say(hello + hello, slowly=slowly)  # it waited for more than 5 s
            while not follower.welcomes:
                await follower.hear()
            known = (Epoch(1, 0), Epoch(4, second), Epoch(6, third))
            assert follower.welcomes == [Welcome(third, known)]
            await follower.say(pack_epoch_report(0) + hello, slowly=slowly)  # a late one
            while len(follower.data) < third:
                await follower.hear()
            assert follower.data == raw(one.store)
            assert [(piece.offset, piece.epoch) for piece in follower.pieces if piece.data] == [
                (0, known[0]), (second, known[1]),
            ]  # fmt: skip
            for _ in range(3):  # by its timer
                await follower.say(pack_epoch_report(third), slowly=slowly)
            await until(lambda: one.in_sync.wanted() == {1, 2}, lambda: one.in_sync.status())
            one.take_in()
            while follower.pieces[-1].data:
                await follower.hear()  # a heartbeat
            assert follower.pieces[-1][2:] == (known[2], third)
            assert follower.pieces[-1].offset == third
            put(one.store, 1)
            while not follower.pieces[-1].data:
                await follower.hear()
            data, epoch, confirmed = follower.pieces[-1][1:]
            assert (bytes(data), epoch, confirmed) == (raw(one.store, third), known[2], third)
            await follower.say(pack_epoch_report(one.store.log.max_offset), slowly=slowly)
            while follower.pieces[-1].confirmed == third:
                await follower.hear()  # that it is confirmed, without any more to copy
            assert follower.pieces[-1].confirmed == one.store.log.max_offset
            assert len(follower.welcomes) == 1


async def test_a_range_is_never_longer_than_a_follower_can_take(tmp_path: Path) -> None:
    async with group(tmp_path, 1, ha_batch_bytes=1000) as (one,):
        await one.lead(1)
        put(one.store, 1000)
        async with follower_of(one) as follower:
            await follower.say(pack_hello(Hello(2)) + pack_epoch_report(0))
            while len(follower.data) < one.store.log.max_offset:
                await follower.hear()
            assert follower.data == raw(one.store)
            places = [piece.offset for piece in follower.pieces if piece.data]
            assert any(place % FILE == 0 for place in places[1:]), "none goes over the end of a file"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (pack_epoch_report(0), Why.NOT_A_REPORT),
        (b"\0" * 8, Why.NOT_A_REPORT),  # a follower without a controller
        (pack_hello(Hello(2)) + b"\0\0\0\4" + bytes(8), Why.NOT_A_REPORT),
        (pack_hello(Hello(2)) + pack_epoch_report(1 << 40), Why.AHEAD),
        (pack_hello(Hello(2)) + pack_epoch_report(5), Why.TOO_OLD),
        (pack_hello(Hello(2)) + pack_epoch_report(FILE) + pack_hello(Hello(3)), Why.OTHER_ID),
        (pack_hello(Hello(1)), Why.OTHER_ID),
    ],
)
async def test_a_leader_turns_away_what_cannot_be(tmp_path: Path, said: bytes, why: Why) -> None:
    async with group(tmp_path, 1) as (one,):
        await one.lead(1)
        put(one.store, 600)
        await one.store.expiry.delete_before(FILE)
        async with follower_of(one) as follower:
            await follower.say(said)
            await follower.closed()
        assert one.leader.refused[why] == 1
        assert one.in_sync.wanted() is None
        await until(lambda: not one.leader.followers)


async def test_a_claim_to_have_what_was_not_sent_counts_for_nothing(tmp_path: Path) -> None:
    async with group(tmp_path, 1, ha_limited=True, ha_bytes_per_s=1000) as (one,):
        await one.lead(1)
        put(one.store, 600)
        async with follower_of(one) as follower:
            await follower.say(pack_hello(Hello(2)) + pack_epoch_report(0))
            while not follower.pieces:
                await follower.hear()
            await follower.say(pack_epoch_report(one.store.log.max_offset))
            await follower.closed()
        assert one.leader.refused[Why.UNSENT] == 1


# --- our follower ----------------------------------------------------------------------------------------


class RawLeader(Peer):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.frames = FollowerFrames()
        self.heard: list[Hello | int] = []

    async def hear(self, until_: Hello | int) -> None:
        async with asyncio.timeout(10):
            while not self.heard or self.heard[-1] != until_:
                data = await self.reader.read(1 << 16)
                assert data, f"closed, after {self.heard}"
                self.heard += self.frames.feed(data)


class LeaderPort:
    def __init__(self) -> None:
        self.connections: asyncio.Queue[RawLeader] = asyncio.Queue()

    async def __aenter__(self) -> LeaderPort:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        self.all: list[RawLeader] = []
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.all.append(RawLeader(reader, writer))
        self.connections.put_nowait(self.all[-1])

    async def __aexit__(self, *exc: object) -> None:
        self.server.close()
        for one in self.all:
            one.close()

    async def next(self) -> RawLeader:
        async with asyncio.timeout(10):
            return await self.connections.get()


async def log_bytes(path: Path, count: int, topic: str = "T") -> bytes:
    async with store_at(path) as store:
        put(store, count, topic=topic)
        return raw(store)


@pytest.mark.parametrize("slowly", [False, True])
async def test_a_follower_of_apaches_leader(tmp_path: Path, slowly: bool) -> None:
    """Its heartbeats say -1 while it is empty; the range that ends an epoch has the number of the next; an
    epoch without a byte leaves no trace."""
    data = await log_bytes(tmp_path / "source", 10)
    size = len(data) // 10
    one, two, three = Epoch(1, 0), Epoch(2, 4 * size), Epoch(5, 8 * size)
    async with LeaderPort() as port, replica_at(tmp_path / "f", 7) as follower:
        await follower.follow(port.address)
        leader = await port.next()
        await leader.hear(Hello(7))
        await leader.say(pack_welcome(0, [one]) * 2, slowly=slowly)  # it answers every hello it sees
        await leader.hear(0)
        await leader.say(pack_epoch_head(-1, 0, one, -1), slowly=slowly)
        await until(lambda: follower.follower.copying)
        assert follower.history.entries == ()
        frames = [
            pack_epoch_head(0, 3 * size, one, 0) + data[: 3 * size],
            pack_epoch_head(3 * size, size, two, size) + data[3 * size : 4 * size],
            pack_epoch_head(4 * size, 10, two, 2 * size) + data[4 * size : 4 * size + 10],
        ]
        await leader.say(b"".join(frames), slowly=slowly)
        await leader.hear(4 * size + 10)
        assert follower.history.entries == (one, two)
        assert follower.store.progress.confirmed == 2 * size
        assert follower.store.log.max_offset == 4 * size + 10
        rest = data[4 * size + 10 : 8 * size]
        await leader.say(pack_epoch_head(4 * size + 10, len(rest), two, 1 << 50) + rest, slowly=slowly)
        await leader.hear(8 * size)
        assert follower.store.progress.confirmed == 8 * size, "no more than is here"
        await leader.say(pack_epoch_head(8 * size, 0, Epoch(3, 8 * size), 1 << 50), slowly=slowly)
        await leader.say(pack_epoch_head(8 * size, 2 * size, three, 0) + data[8 * size :], slowly=slowly)
        await leader.hear(10 * size)
        assert follower.history.entries == (one, two, three)
        assert follower.store.progress.confirmed == 8 * size, "it never falls"
        assert raw(follower.store) == data
        # Once more: it says hello, reports a place before its end, and compares what comes.
        leader.close()
        leader = await port.next()
        await leader.hear(Hello(7))
        await leader.say(pack_welcome(10 * size, [one, two, three]), slowly=slowly)
        await leader.hear(1)
        await leader.say(pack_epoch_head(1, len(data) - 1, one, 10 * size) + data[1:], slowly=slowly)
        await leader.hear(10 * size)
        await until(lambda: follower.store.progress.confirmed == 10 * size)


@pytest.mark.parametrize(
    ("frame", "state", "text"),
    [
        (pack_epoch_head(7, 1, Epoch(1, 0), 0) + b"x", LinkState.NOT_A_LOG, "from 7, but 1 is next"),
        (b"\0\0\0\3", LinkState.LOST, "a frame of kind 3"),
        (pack_epoch_head(1, 0, Epoch(1, 0), 0), LinkState.LEADER_BEHIND, "the leader's log ends at 1"),
        (pack_epoch_head(1, 4, Epoch(1, 0), 0) + b"xxxx", LinkState.DIVERGED, "the two logs differ at 1"),
    ],
)
async def test_a_follower_refuses_what_cannot_be(
    tmp_path: Path, frame: bytes, state: LinkState, text: str
) -> None:
    data = await log_bytes(tmp_path / "f", 5)
    async with LeaderPort() as port, replica_at(tmp_path / "f", 7) as follower:
        await follower.history.begin(1, 0)
        await follower.follow(port.address)
        leader = await port.next()
        await leader.hear(Hello(7))
        await leader.say(pack_welcome(len(data), [Epoch(1, 0)]))
        await leader.hear(1)
        await leader.say(frame)
        assert text in await follower.becomes(state)
        assert raw(follower.store) == data


async def test_ranges_before_they_were_asked_for(tmp_path: Path) -> None:
    async with LeaderPort() as port, replica_at(tmp_path, 7) as follower:
        await follower.follow(port.address)
        await (await port.next()).say(pack_epoch_head(0, 4, Epoch(1, 0), 0) + b"xxxx")
        assert "before it was requested" in await follower.becomes(LinkState.LOST)
        assert follower.store.log.max_offset == 0


async def test_an_epoch_that_falls_is_another_history(tmp_path: Path) -> None:
    data = await log_bytes(tmp_path / "f", 5)
    async with LeaderPort() as port, replica_at(tmp_path / "f", 7) as follower:
        await follower.history.begin(3, 0)
        await follower.follow(port.address)
        leader = await port.next()
        await leader.hear(Hello(7))
        await leader.say(pack_welcome(len(data) + 9, [Epoch(3, 0)]))
        await leader.hear(1)
        await leader.say(pack_epoch_head(1, len(data) - 1, Epoch(3, 0), 0) + data[1:])
        await leader.say(pack_epoch_head(len(data), 9, Epoch(2, 5), 0) + bytes(9))
        text = await follower.becomes(LinkState.DIVERGED)
        assert f"from {len(data)} in epoch 2 from 5, and this log is in epoch 3 from 0 there" in text


async def test_a_leader_that_says_nothing(tmp_path: Path) -> None:
    async with LeaderPort() as port, replica_at(tmp_path, 7, ha_silence_ms=100) as follower:
        await follower.follow(port.address)
        assert "sent nothing for" in await follower.becomes(LinkState.LOST)


async def test_a_cut_in_the_middle_of_a_record_is_refused(tmp_path: Path) -> None:
    """As of a leader whose list of epochs is wrong."""
    data = await log_bytes(tmp_path / "f", 5)
    async with LeaderPort() as port, replica_at(tmp_path / "f", 7) as follower:
        await follower.history.begin(1, 0)
        follower.store.progress.confirmed = 0  # nothing was: or that would be refused first
        await follower.follow(port.address)
        leader = await port.next()
        await leader.hear(Hello(7))
        await leader.say(pack_welcome(77, [Epoch(1, 0)]))
        assert "inside the record" in await follower.becomes(LinkState.DIVERGED)
        assert raw(follower.store) == data
