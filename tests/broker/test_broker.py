"""The broker as a whole: start, stop, what a restart keeps, ports, and overload."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.errors import OptionError
from kerolox.metric_text import MetricsExporter
from kerolox.net.dialer import Dialer
from kerolox.net.listener import ListenFailed
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command, decode_command
from kerolox.protocol.frame import FrameSplitter
from kerolox.protocol.headers.offset import QueryOffsetRequest, UpdateOffsetRequest
from kerolox.store.errors import StoreLocked
from kerolox.store.options import FlushMode
from kerolox.store.tables.table import TableBroken
from kerolox.testing.broker import SMALL, running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

from .talk import Talk, until


def options(directory: Path, **more: Any) -> BrokerOptions:
    return BrokerOptions(
        **{"bind_address": "127.0.0.1", "listen_port": 0, "store_path": str(directory), **SMALL, **more}
    )


# --- what a restart keeps ------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_a_restart_keeps_messages_topics_groups_and_offsets(tmp_path: Path, flush: FlushMode) -> None:
    async with (
        running_broker(directory=tmp_path, flush_mode=flush) as running,
        Dialer() as dialer,
    ):
        talk = Talk(dialer, running)
        for number in range(50):
            assert (await talk.send("T", b"%d" % number, {"KEYS": f"k{number}"})).code == 0
        await talk.pull("T", consumer_group="g")
        await dialer.call(
            running.address,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=20),
        )
        port = running.broker.endpoints.port
        topics, version = (
            dict(running.broker.tables.topics.table.topics),
            running.broker.tables.topics.table.version,
        )
        before = await talk.messages("T")

    async with (
        running_broker(directory=tmp_path, flush_mode=flush, listen_port=port) as running,
        Dialer() as dialer,
    ):
        talk = Talk(dialer, running)
        recovered = running.broker.store.recovered
        assert recovered is not None
        assert not recovered.crashed
        assert await talk.messages("T") == before
        assert len(before) == 50
        table = running.broker.tables.topics.table
        assert (table.topics, table.version) == (topics, version)
        assert "g" in running.broker.membership.groups.table.groups
        answer = await dialer.call(
            running.address,
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryOffsetRequest(consumer_group="g", topic="T", queue_id=0),
        )
        assert answer.fields["offset"] == "20"
        assert (await talk.send("T")).fields["queueOffset"] == "50"
        route = await talk.route("T")  # told to the new name server from what was kept
        assert route is not None


async def test_offsets_are_saved_by_interval(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_broker(directory=tmp_path, clock=clock) as running:
        running.broker.tables.offsets.commit("T", "g", 0, 7)
        path = tmp_path / "store" / "config" / "consumerOffset.json"
        await clock.advance(4.9)
        assert not path.exists()
        await clock.advance(0.2)
        await until(path.exists)
        assert json.loads(path.read_bytes())["offsetTable"] == {"T@g": {"0": 7}}


async def test_a_table_that_could_not_be_saved_is_saved_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    async with running_broker(directory=tmp_path, files=files, save_offsets_ms=50) as running:
        files.fill()
        running.broker.membership.groups.config("made")
        await until(lambda: any("table_not_saved" in record.message for record in caplog.records))
        files.make_room()
        path = tmp_path / "store" / "config" / "subscriptionGroup.json"
        await until(lambda: path.exists() and b'"made"' in path.read_bytes())


# --- start -----------------------------------------------------------------------------------------------


async def test_a_free_port_comes_with_its_neighbours_and_is_told_everywhere(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running:
        broker = running.broker
        port = broker.endpoints.port
        assert (broker.endpoints.vip_port, broker.endpoints.ha_port) == (port - 2, port + 1)
        assert broker.address == f"127.0.0.1:{port}"
        assert broker.endpoints.ha_address == f"127.0.0.1:{port + 1}"
        assert broker.endpoints.host == "127.0.0.1"
        # The options stay what they were set to: the next start chooses again.
        options = broker.options
        assert (options.listen_port, options.vip_port, options.ha_port) == (0, -1, -1)
        assert options.advertised_host == ""
        for number in (port, port - 2):
            with socket.create_connection(("127.0.0.1", number)):
                pass


async def test_a_broker_on_all_addresses_tells_one_that_others_reach(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, bind_address="0.0.0.0") as running, Dialer() as dialer:
        host = running.address.rpartition(":")[0]
        assert host not in ("0.0.0.0", "")
        answer = await Talk(dialer, running).send("T")
        assert bytes.fromhex(answer.fields["msgId"][:8]) == socket.inet_aton(host)


async def test_an_address_that_was_asked_for_is_told(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, advertised_host="localhost") as running:
        assert running.address.startswith("localhost:")
        assert running.broker.store.log.store_host[:4] == bytes([127, 0, 0, 1])
        async with Dialer() as dialer:
            route = await Talk(dialer, running).route("TBW102")
            assert route is not None
            assert route.broker_datas[0].broker_addrs == {0: running.address}
    with pytest.raises(OptionError, match="brokerIP1"):
        async with running_broker(advertised_host="no.such.host.invalid"):
            pass


@pytest.mark.parametrize("neighbour", [0, -2])
async def test_a_taken_port_is_an_error_that_leaves_nothing_behind(tmp_path: Path, neighbour: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenFailed, match=str(port)):
            async with Broker(options(tmp_path / "store", listen_port=port - neighbour)):
                pass
    assert not (tmp_path / "store").exists()


async def test_a_store_in_use_is_refused_and_the_ports_are_free_again(tmp_path: Path) -> None:
    async with Broker(options(tmp_path)):
        second = Broker(options(tmp_path))
        with pytest.raises(StoreLocked):
            async with second:
                pass
        with socket.socket() as free:
            free.bind(("127.0.0.1", second.endpoints.port))


async def test_a_broken_table_stops_the_start_and_stays_as_it_is(tmp_path: Path) -> None:
    async with Broker(options(tmp_path)):
        pass
    path = tmp_path / "config" / "topics.json"
    path.write_bytes(b"{broken")
    (tmp_path / "config" / "topics.json.bak").write_bytes(b"{broken too")
    with pytest.raises(TableBroken, match=r"topics\.json"):
        async with Broker(options(tmp_path)):
            pass
    assert path.read_bytes() == b"{broken"
    path.unlink()
    (tmp_path / "config" / "topics.json.bak").unlink()
    async with Broker(options(tmp_path)) as broker:
        assert broker.tables.topics.find("TBW102") is not None


async def test_rocketmqs_topics_and_groups_are_there(tmp_path: Path) -> None:
    async with Broker(options(tmp_path, cluster="C", broker_name="b")) as broker:
        topics = {
            name: (config.read_queue_nums, config.perm)
            for name, config in broker.tables.topics.table.topics.items()
        }
        assert topics == {
            "TBW102": (8, 7),
            "C": (16, 7),
            "b": (1, 7),
            "SELF_TEST_TOPIC": (1, 6),
            "BenchmarkTest": (1024, 6),
            "OFFSET_MOVED_EVENT": (1, 6),
            "SCHEDULE_TOPIC_XXXX": (18, 6),
            "C_REPLY_TOPIC": (1, 6),
            "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
            "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
            "rmq_sys_REVIVE_LOG_C": (8, 6),
            "rmq_sys_SYNC_BROKER_MEMBER_b": (1, 1),
            "rmq_sys_wheel_timer": (1, 6),
        }
        assert len(broker.membership.groups.table.groups) == 8


# --- stop --------------------------------------------------------------------------------------------------


async def test_a_stop_with_held_pulls_and_open_connections_is_quick_and_clean(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Dialer() as dialer:
        async with running_broker(directory=tmp_path) as running:
            talk = Talk(dialer, running)
            await talk.send("T")
            held = [asyncio.ensure_future(talk.pull("T", 0, 1, sys_flag=6)) for _ in range(10)]
            await until(lambda: running.broker.consuming.waits.held == 10)
            started_s = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started_s < 5
        results = await asyncio.gather(*held, return_exceptions=True)
        assert all(isinstance(result, Exception) for result in results)
    assert not (tmp_path / "store" / "abort").exists()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert any("broker_stopped" in record.message for record in caplog.records)


async def test_a_stop_answers_those_who_wait_for_the_disk_first(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with Dialer() as dialer:
        async with running_broker(directory=tmp_path, files=files, flush_mode=FlushMode.SYNC) as running:
            talk = Talk(dialer, running)
            await talk.send("T")
            files.stall_syncs()
            waiting = asyncio.ensure_future(talk.send("T"))
            assert await asyncio.to_thread(files.wait_for_stalled_sync)
            asyncio.get_running_loop().call_later(0.1, files.release_syncs)
        answer = await waiting
        assert (answer.code, answer.fields["queueOffset"]) == (0, "1")


async def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    broker = Broker(options(tmp_path))
    await broker.start()
    await broker.close()
    await broker.close()


# --- overload ----------------------------------------------------------------------------------------------


async def test_sends_that_waited_too_long_are_refused_and_the_rest_is_served(tmp_path: Path) -> None:
    """One pass with many sends, each of which takes ten milliseconds."""
    clock = ManualClock()
    async with running_broker(directory=tmp_path, clock=clock, send_wait_ms=200) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.broker.endpoints.port)
        async with Dialer() as dialer:
            await Talk(dialer, running).send("T")
        fields = {
            "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        }  # fmt: skip
        frames = [
            Command(RequestCode.SEND_MESSAGE_V2, opaque=number, fields=fields, body=b"x").encode()
            for number in range(64)
        ]

        def take_time(*_: Any) -> None:
            clock._monotonic_s += 0.01

        running.broker.producing.sends.on_stored.append(take_time)
        writer.write(b"".join(frames))
        splitter = FrameSplitter()
        answers: list[Command] = []
        while len(answers) < 64:
            answers += [decode_command(*frame) for frame in splitter.feed(await reader.read(1 << 16))]
        writer.close()
        codes = [answer.code for answer in sorted(answers, key=lambda answer: answer.opaque)]
        assert codes == [0] * 24 + [ResponseCode.SYSTEM_BUSY] * 40  # the clock is read every 8 frames
        busy = next(answer for answer in answers if answer.code == ResponseCode.SYSTEM_BUSY)
        assert (busy.remark or "").startswith("[TIMEOUT_CLEAN_QUEUE]")
        async with Dialer() as dialer:
            talk = Talk(dialer, running)
            assert len(await talk.messages("T")) == 25
            assert (await talk.send("T")).code == 0


async def test_an_unknown_request_is_answered_3(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        answer = await dialer.call(running.address, 9999)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_limits_changed_while_running_are_in_force(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        body = b"waitTimeMillsInSendQueue=350\nwaitTimeMillsInPullQueue=700"
        assert (await dialer.call(running.address, RequestCode.UPDATE_BROKER_CONFIG, None, body)).code == 0
        lanes = running.broker.lanes
        assert (lanes["send"].age_s_max, lanes["pull"].age_s_max) == (0.35, 0.7)


async def test_metrics_and_health_are_served_where_asked_for(tmp_path: Path) -> None:
    async with (
        running_broker(directory=tmp_path, metrics_exporter=MetricsExporter.PROM, metrics_port=0) as running,
        Dialer() as dialer,
    ):
        await Talk(dialer, running).send("T")
        assert running.broker.figures.exporter is not None
        for path, wanted in (("/healthz", b"ok"), ("/metrics", b'topic="T"')):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.broker.figures.exporter.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            page = await reader.read()
            writer.close()
            assert b"200 OK" in page
            assert wanted in page
