"""What does not fit is refused by name, on both ends, and nothing of it is appended."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kerolox.protocol.ha import pack_head, pack_report
from kerolox.replication import follower as follower_module
from kerolox.replication import leader as leader_module
from kerolox.replication.link_state import LinkState
from kerolox.replication.turned_away import Why
from kerolox.store.log.acks import NotCopied
from kerolox.store.state import Obstacle
from kerolox.testing.faults import FaultyFiles

from .kit import FILE, Following, Leading, Settings, pair, put, raw, store_at, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "RETRY_REFUSED_S", 0.05)


async def copied(tmp_path: Path, count: int = 50) -> None:
    """A leader and a follower with the same log."""
    async with pair(tmp_path, lambda store: put(store, count)) as (leading, following):
        await following.has(leading.store)


async def test_other_bytes_where_both_have_some(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await copied(tmp_path)
    async with store_at(tmp_path / "leader") as leads, store_at(tmp_path / "follower") as follows:
        same = leads.log.max_offset
        put(leads, 5)
        put(follows, 2, size=400)
        had = raw(follows)
        async with Leading(leads) as leading, Following(follows, leading.address) as following:
            text = await following.becomes(LinkState.DIVERGED)
            assert f"in the record at {same}: the leader's was stored at 20" in text
            assert f"this follower's log ends at {len(had)}" in text
            assert f"run `kerolox store resync {follows.root} --leader HOST:PORT` to continue" in text
            await until(lambda: following.follower.refusals > 3)
            assert raw(follows) == had
            # Nothing behind what is equal is acknowledged.
            assert all(ack <= same for acks in leading.told.acks.values() for ack in acks)
            assert len([line for line in caplog.messages if "cannot_follow" in line]) == 1


async def test_other_bytes_of_one_length(tmp_path: Path) -> None:
    """A disk that was swapped: nothing but a comparison finds it."""
    async with store_at(tmp_path / "leader") as leads, store_at(tmp_path / "follower") as follows:
        put(leads, 50)
        await asyncio.sleep(0.01)
        put(follows, 50)
        assert leads.log.max_offset == follows.log.max_offset
        async with Leading(leads) as leading, Following(follows, leading.address) as following:
            await following.becomes(LinkState.DIVERGED)


async def test_a_leader_that_lost_messages(tmp_path: Path) -> None:
    await copied(tmp_path)
    async with store_at(tmp_path / "leader") as leads, store_at(tmp_path / "follower") as follows:
        put(follows, 3)
        had = raw(follows)
        async with Leading(leads) as leading, Following(follows, leading.address) as following:
            text = await following.becomes(LinkState.LEADER_BEHIND)
            assert (
                f"the leader's log ends at {leads.log.max_offset} and this follower's at {len(had)}" in text
            )
            assert "make this broker the leader" in text.lower()
            assert raw(follows) == had


async def test_a_leader_that_came_back_empty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with store_at(tmp_path / "follower") as follows, store_at(tmp_path / "leader") as leads:
        put(follows, 10)
        had = raw(follows)
        async with Leading(leads) as leading, Following(follows, leading.address) as following:
            # One byte is more than the leader has: it is turned away there, and nothing happens here.
            await until(lambda: leading.leader.refused[Why.AHEAD] > 1)
            assert raw(follows) == had
            assert following.follower.state is LinkState.LOST
            assert (
                "this leader's at 0. If this leader lost messages, make the follower the leader"
                in caplog.text
            )


async def test_a_follower_that_is_too_old(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await copied(tmp_path)
    async with store_at(tmp_path / "leader") as leads, store_at(tmp_path / "follower") as follows:
        put(leads, 1000)
        await leads.flusher.flush_all()
        leads.segments.delete_before(2 * FILE + 1)
        async with Leading(leads) as leading, Following(follows, leading.address):
            await until(lambda: leading.leader.refused[Why.TOO_OLD] > 1)
            assert f"this leader's begins at {2 * FILE}: the part between was deleted" in caplog.text
            # Once a minute, however often it comes.
            assert len([line for line in caplog.messages if "follower_refused" in line]) == 1


@pytest.mark.parametrize("here", [FILE // 2, FILE * 2])
async def test_files_of_another_size(tmp_path: Path, here: int) -> None:
    async with store_at(tmp_path / "leader") as leads, Leading(leads) as leading:
        put(leads, 700)
        async with (
            store_at(tmp_path / "follower", commit_log_file_bytes=here) as follows,
            Following(follows, leading.address) as following,
        ):
            text = await following.becomes(LinkState.OTHER_FILE_SIZE)
            assert f"files here have {here} bytes (mappedFileSizeCommitLog)" in text
            assert follows.log.max_offset <= min(FILE, here)


@pytest.mark.parametrize("broken", ["full", "read-only"])
async def test_a_disk_that_takes_nothing_is_told_and_costs_the_leader_nothing(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower says why and backs off; a leader that waits for followers does not wait for this one."""
    files = FaultyFiles()
    async with store_at(tmp_path / "leader") as leads, Leading(leads, watched=False) as leading:
        async with (
            store_at(tmp_path / "follower", files) as follows,
            Following(follows, leading.address) as following,
        ):
            put(leads, 10)
            await following.has(leads)
            leads.acks.wait_for_replicas = True
            await leads.put("T", 0, b"copied")
            if broken == "full":
                files.fill(0)
            else:
                files.read_only = True
            put(leads, 700)  # more than there is room for in its file
            await following.becomes(LinkState.NOT_WRITABLE)
            await until(lambda: following.follower.refusals > 5, lambda: following.follower.text)
            assert len([line for line in caplog.messages if "cannot_follow" in line]) <= 2  # not each time
            await until(lambda: not list(leads.replicas))
            with pytest.raises(NotCopied, match="SLAVE_NOT_AVAILABLE"):  # at once, not after slaveTimeout
                await asyncio.wait_for(leads.put("T", 0, b"alone"), leads.options.replica_timeout_ms / 2000)
            files.make_room()
            files.read_only = False
            if broken == "full":
                assert "Replication continues automatically" in following.follower.text
                follows.state.clear(Obstacle.DISK_FULL)  # housekeeping does, when it looks the next time
                await following.has(leads)
            else:
                assert "Restart this broker when its disk is repaired" in following.follower.text
        async with (
            store_at(tmp_path / "follower") as follows,
            Following(follows, leading.address) as following,
        ):
            await following.has(leads)


async def test_a_follower_goes_on_as_soon_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "RETRY_REFUSED_S", 3600.0)
    files = FaultyFiles()
    async with (
        store_at(tmp_path / "leader") as leads,
        Leading(leads, watched=False) as leading,
        store_at(tmp_path / "follower", files) as follows,
        Following(follows, leading.address) as following,
    ):
        put(leads, 10)
        await following.has(leads)
        files.fill(0)
        put(leads, 700)
        await following.becomes(LinkState.NOT_WRITABLE)
        files.make_room()
        follows.state.clear(Obstacle.DISK_FULL)
        await following.has(leads)


async def test_no_log_is_no_log(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(pack_head(0, 100) + b"x" * 100)
        await reader.read()
        writer.close()
        left.set()

    left = asyncio.Event()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with store_at(tmp_path / "follower") as follows, Following(follows, address) as following:
        await following.becomes(LinkState.NOT_A_LOG)
        assert follows.log.max_offset == 0
    await asyncio.wait_for(left.wait(), 10)
    server.close()


async def test_a_web_server_is_no_leader(tmp_path: Path) -> None:
    """Somebody else has the port: nothing of what it says is taken for a log."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with store_at(tmp_path / "follower") as follows:
        put(follows, 5)
        had = raw(follows)
        async with Following(follows, address) as following:
            text = await following.becomes(LinkState.LOST)
            assert "Is this the port for followers (haListenPort)?" in text
            await asyncio.sleep(0.5)  # tries again
            assert raw(follows) == had
    server.close()


# --- what a leader believes -------------------------------------------------------------------------------


async def talk(leading: Leading, *said: bytes) -> bytes:
    """What comes until the leader hangs up."""
    host, port = leading.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for piece in said:
        writer.write(piece)
        await asyncio.sleep(0.05)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_reports_that_cannot_be_true(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader") as leads, Leading(leads) as leading:
        put(leads, 5)
        end = leads.log.max_offset
        refused = leading.leader.refused
        assert await talk(leading, pack_report(end + 1)) == b""
        assert refused[Why.AHEAD] == 1
        assert await talk(leading, pack_report(-1)) == b""
        assert await talk(leading, bytes.fromhex("00000001 0000 0000 0000000000000002")) == b""
        assert refused[Why.NOT_A_REPORT] == 2
        assert leading.told.acks == {}
        leading.settings.ha_batch_bytes = 1
        leads.segments.read_hot = lambda offset, size: None  # type: ignore[method-assign]
        leads.segments.read = _never  # type: ignore[method-assign]
        await talk(leading, pack_report(end - 10), pack_report(end - 5))
        assert refused[Why.UNSENT] == 1
        assert [ack for acks in leading.told.acks.values() for ack in acks] == [end - 10]


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # TLS
        b"\0\0\0\x64\0\0\0\x60" + b'{"code":105}'.ljust(96),  # a request for a broker
    ],
    ids=["http", "tls", "remoting"],
)
async def test_who_is_no_follower_is_no_replica(
    tmp_path: Path, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with store_at(tmp_path / "leader") as leads, Leading(leads, watched=False) as leading:
        put(leads, 5)
        leads.acks.wait_for_replicas = True
        assert await talk(leading, said) == b""
        assert sum(leading.leader.refused.values()) == 1
        assert not list(leads.replicas)
        with pytest.raises(NotCopied):  # RocketMQ would call it a copy from now on
            await leads.put("T", 0, b"x")
        assert len([line for line in caplog.messages if "follower_refused" in line]) == 1


def _never(offset: int, size: int) -> bytes:
    import time

    time.sleep(0.3)
    return bytes(size)


async def test_who_says_nothing_is_sent_nothing_and_closed(tmp_path: Path) -> None:
    settings = Settings(ha_heartbeat_ms=20, ha_silence_ms=300)
    async with store_at(tmp_path / "leader") as leads, Leading(leads, settings) as leading:
        put(leads, 5)
        assert await talk(leading) == b""
        assert leading.leader.refused[Why.SILENT] == 1
        heard = await talk(leading, pack_report(leads.log.max_offset))
        assert heard == pack_head(leads.log.max_offset, 0) * (len(heard) // 12)
        assert len(heard) >= 5 * 12
        assert not leading.leader.followers


async def test_no_more_followers_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_module, "FOLLOWERS_MAX", 2)
    caplog.set_level(logging.WARNING)
    async with store_at(tmp_path / "leader") as leads, Leading(leads) as leading:
        host, port = leading.address.split(":")
        two = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for _, writer in two:
            writer.write(pack_report(leads.log.max_offset))
        await until(lambda: sum(one.joined for one in leading.leader.followers) == 2)
        assert await talk(leading) == b""
        assert leading.leader.refused[Why.TOO_MANY] == 1
        assert len(leading.leader.followers) == 2
        for _, writer in two:
            writer.close()


async def test_connections_that_ask_for_nothing_make_room_for_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "FOLLOWERS_MAX", 2)
    async with (
        store_at(tmp_path / "leader") as leads,
        Leading(leads, Settings(ha_silence_ms=600_000)) as leading,
    ):
        host, port = leading.address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
        await until(lambda: leading.leader.refused[Why.TOO_MANY] == 2)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(pack_report(leads.log.max_offset))
        await until(lambda: any(one.joined for one in leading.leader.followers))
        assert len(leading.leader.followers) == 2
        for _, one in (*silent, (reader, writer)):
            one.close()


async def test_one_that_reads_nothing_holds_up_nobody(tmp_path: Path) -> None:
    async with pair(tmp_path, commit_log_file_bytes=32 << 20) as (leading, following):
        host, port = leading.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(pack_report(0))
        await until(lambda: len(leading.leader.followers) == 2)
        for _ in range(40):
            put(leading.store, 8, size=100_000)
            await asyncio.sleep(0)
        await following.has(leading.store)
        slow = min(leading.leader.followers, key=lambda one: one.acked)
        assert slow.next < leading.store.log.max_offset  # it was sent what its socket took, and no more
        writer.close()
