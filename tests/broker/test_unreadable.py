"""Files that cannot be read for a while, over real sockets: no acknowledged message is taken for deleted or
passed over, and requests fail with an error that clients retry."""

from __future__ import annotations

import asyncio
import errno
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox import Message, Producer, PushConsumer, PushOptions, Received
from kerolox.metric_text import MetricsExporter
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import offset as headers
from kerolox.protocol.headers.query import QueryMessageRequest, ViewMessageRequest
from kerolox.protocol.record import decode_records
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

from .talk import BORN_MS, Talk, until
from .transaction_kit import COMMIT, Half, Scene, scene
from .transaction_kit import TOPIC as ORDERS
from .transaction_kit import Producer as Payer

ERRORS = pytest.mark.parametrize(
    "number", [errno.EIO, errno.EMFILE, errno.EACCES], ids=["EIO", "EMFILE", "EACCES"]
)
BUSY = ResponseCode.SYSTEM_BUSY
FILE_BYTES = 64 << 10  # of the log: a few messages fill several


def in_log(bodies: list[bytes], count: int) -> bool:
    return bodies == [b"%d" % number for number in range(count)]


@asynccontextmanager
async def talking(directory: Path, files: FaultyFiles, **options: Any) -> AsyncIterator[Talk]:
    async with (
        running_broker(
            directory=directory, files=files, commit_log_file_bytes=FILE_BYTES, **options
        ) as running,
        Dialer() as dialer,
    ):
        yield Talk(dialer, running)


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Talk, FaultyFiles]]:
    files = FaultyFiles()
    async with talking(tmp_path, files, metrics_exporter=MetricsExporter.PROM, metrics_port=0) as talk:
        yield talk, files


async def page(running: RunningBroker, name: str) -> tuple[int, str]:
    exporter = running.broker.figures.exporter
    assert exporter is not None

    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/{name}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def tries(files: FaultyFiles, clock: ManualClock, step_s: float, times: int = 5) -> None:
    """Let time pass, step by step, until so many more steps met a failed read."""

    async def failed_after(count: int) -> None:
        await clock.advance(step_s)
        await until(lambda: files.failed_reads > count)

    for _ in range(times):
        await failed_after(files.failed_reads)


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [line for line in caplog.messages if line.startswith(word)]


# --- pulls -------------------------------------------------------------------------------------------


@ERRORS
async def test_a_push_consumer_gets_every_message_after_the_failure(tmp_path: Path, number: int) -> None:
    files = FaultyFiles()
    seen: list[str] = []
    async with talking(tmp_path, files) as talk:
        address = talk.running.nameserver_address
        await talk.running.create_topic("T", queues=1)
        async with Producer(address, group="shop") as producer:
            await producer.send_many([Message("T", f"{n}") for n in range(400)])
        files.fail_reads(number, path_contains="commitlog")
        options = PushOptions(start="first", error_pause_s=0.05, ordered=True)
        async with PushConsumer(address, group="billing", options=options) as consumer:

            @consumer.on("T")
            async def bill(message: Received) -> None:
                seen.append(message.text)

            await until(lambda: files.failed_reads >= 20)
            assert talk.running.broker.tables.offsets.offset("T", "billing", 0) <= 0
            assert seen == []
            files.fail_reads(None, path_contains="commitlog")
            await until(lambda: len(seen) >= 400, 30)
    assert seen == [str(n) for n in range(400)]


@ERRORS
async def test_a_pull_is_told_to_come_again_and_why(
    parts: tuple[Talk, FaultyFiles], caplog: pytest.LogCaptureFixture, number: int
) -> None:
    talk, files = parts
    for n in range(40):
        await talk.send("T", b"%d" % n)
    files.fail_reads(number, path_contains="commitlog")
    for cold in (False, True):
        files.cold = (lambda path, offset, size: True) if cold else None
        for subscription in ("*", "tag", "a is null"):
            kind = {"subscription": "a is null", "expression_type": "SQL92"} if " " in subscription else {}
            answer = await talk.pull("T", **(kind or {"subscription": "*"}))
            assert answer.code == BUSY
            assert "nextBeginOffset" not in answer.fields
            assert all(word in (answer.remark or "") for word in ("commitlog", "Next:"))
    assert len(lines(caplog, "store_unreadable")) == 1
    status, text = await page(talk.running, "healthz")
    assert status == 503
    assert errno.errorcode[number] in text
    assert "commitlog" in text
    _, text = await page(talk.running, "metrics")
    (gauge,) = [line for line in text.splitlines() if line.startswith("kerolox_store_unreadable_files{")]
    assert gauge.endswith(" 1")
    assert f'error="{errno.errorcode[number]}"' in gauge
    files.fail_reads(None, path_contains="commitlog")
    assert in_log([message.body for message in await talk.messages("T")], 40)
    await until(lambda: lines(caplog, "store_readable_again"))
    status, text = await page(talk.running, "healthz")
    assert (status, text) == (200, "ok\n")
    _, text = await page(talk.running, "metrics")
    (gauge,) = [line for line in text.splitlines() if line.startswith("kerolox_store_unreadable_files{")]
    assert gauge.endswith(" 0")


async def test_what_lies_before_an_unreadable_file_is_given_and_nothing_behind_it(
    parts: tuple[Talk, FaultyFiles],
) -> None:
    talk, files = parts
    for n in range(30):
        await talk.send("T", b"%d" % n + bytes(8 << 10))
    files.fail_reads(path_contains=f"commitlog/{FILE_BYTES:020d}")
    first = await talk.pull("T")
    assert first.code == 0
    found = decode_records(first.body)
    after = int(first.fields["nextBeginOffset"])
    assert [message.queue_offset for message in found] == list(range(after))
    assert 0 < after < 30
    assert max(message.physical_offset for message in found) < FILE_BYTES
    for _ in range(3):
        assert (await talk.pull("T", 0, after)).code == BUSY
    files.fail_reads(None, path_contains=f"commitlog/{FILE_BYTES:020d}")
    assert len(await talk.messages("T", 0, after)) == 30 - after


async def test_an_unreadable_queue_file_stops_its_readers_only(parts: tuple[Talk, FaultyFiles]) -> None:
    talk, files = parts
    for topic in ("T", "U"):
        await talk.send(topic, b"0")
    store = talk.running.broker.store
    await store.housekeeper.flush()
    for queue in store.consume_queues:
        queue.cool()
    files.fail_reads(path_contains="consumequeue/T")
    assert (await talk.pull("T")).code == BUSY
    assert (await talk.pull("U")).code == 0
    files.fail_reads(None, path_contains="consumequeue/T")
    assert (await talk.pull("T")).code == 0


# --- questions ---------------------------------------------------------------------------------------


async def test_questions_are_not_answered_with_nothing(parts: tuple[Talk, FaultyFiles]) -> None:
    talk, files = parts
    broker = talk.running.broker
    answer = await talk.send("T", b"0", {"KEYS": "k", "UNIQ_KEY": "u"})
    for n in range(1, 20):
        await talk.send("T", b"%d" % n, {"KEYS": "k"})
    broker.tables.offsets.commit("T", "g", 0, 7)
    broker.tables.groups.put(GroupConfig(group_name="g"))
    place = broker.store.consume_queues.queue("T", 0).entry(3)
    assert place is not None
    assert answer.code == 0

    async def ask(code: RequestCode, header: Any) -> int:
        return (await talk.dialer.call(talk.address, code, header)).code

    def questions() -> list[tuple[RequestCode, Any]]:
        assert place is not None
        search = headers.SearchOffsetRequest(topic="T", queue_id=0, timestamp=BORN_MS * 2)
        earliest = headers.EarliestStoreTimeRequest(topic="T", queue_id=0)
        reset = headers.ResetOffsetRequest(topic="T", group="g", timestamp=1000, is_force=True)
        key = QueryMessageRequest(
            topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1, unique_key=False
        )
        return [
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search),
            (RequestCode.GET_EARLIEST_MSG_STORETIME, earliest),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset),
            (RequestCode.QUERY_MESSAGE, key),
            (RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=place[0])),
        ]

    broker.options.server_side_reset = True
    files.fail_reads(path_contains="commitlog")
    for code, header in questions():
        assert await ask(code, header) == BUSY, code
    assert broker.tables.offsets.offset("T", "g", 0) == 7
    files.fail_reads(None, path_contains="commitlog")
    for code, header in questions():
        assert await ask(code, header) == 0, code


async def test_an_unreadable_index_is_not_an_empty_one(parts: tuple[Talk, FaultyFiles]) -> None:
    talk, files = parts
    store = talk.running.broker.store
    await talk.send("T", b"0", {"KEYS": "k"})
    await store.housekeeper.flush()
    store.key_filler.put_pending()
    for file in store.index._all:
        file.drop_table()
    header = QueryMessageRequest(
        topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=(1 << 63) - 1, unique_key=False
    )
    files.fail_reads(path_contains="/index/")
    assert (await talk.dialer.call(talk.address, RequestCode.QUERY_MESSAGE, header)).code == BUSY
    files.fail_reads(None, path_contains="/index/")
    assert (await talk.dialer.call(talk.address, RequestCode.QUERY_MESSAGE, header)).code == 0


# --- what waits in the store ---------------------------------------------------------------------------


@ERRORS
@pytest.mark.parametrize("where", ["commitlog", "timerlog"])
async def test_timer_messages_that_cannot_be_read_when_due_come_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, number: int
) -> None:
    files, clock = FaultyFiles(), ManualClock(BORN_MS)
    async with talking(tmp_path, files, clock=clock) as talk:
        broker = talk.running.broker
        for n in range(20):
            await talk.send("T", b"%d" % n, {"TIMER_DELAY_MS": "5001"})
        await until(lambda: not broker.later.timers.arrivals.behind)
        files.fail_reads(number, path_contains=where)
        await tries(files, clock, 6)
        assert broker.store.queues.max_offset("T", 0) == 0
        assert len(lines(caplog, "store_unreadable")) == 1
        assert lines(caplog, "timer_") == []
        files.fail_reads(None, path_contains=where)
        await clock.advance(2)
        await until(lambda: broker.store.queues.max_offset("T", 0) == 20)
        assert in_log([message.body for message in await talk.messages("T")], 20)


async def test_timer_messages_that_cannot_be_read_when_they_come_are_entered_later(tmp_path: Path) -> None:
    files, clock = FaultyFiles(), ManualClock(BORN_MS)
    async with talking(tmp_path, files, clock=clock, timer_stop_enqueue=True) as talk:
        broker = talk.running.broker
        for n in range(20):
            await talk.send("T", b"%d" % n, {"TIMER_DELAY_MS": "5001"})
        arrivals = broker.later.timers.arrivals
        assert arrivals.behind == 20
        arrivals.forget_handed()  # as after a start, or another role
        files.fail_reads(path_contains="commitlog")
        broker.options.timer_stop_enqueue = False
        await tries(files, clock, 2)
        assert arrivals.behind == 20
        files.fail_reads(None, path_contains="commitlog")
        await clock.advance(2)
        await until(lambda: not arrivals.behind)
        await clock.advance(10)
        await until(lambda: broker.store.queues.max_offset("T", 0) == 20)
        assert in_log([message.body for message in await talk.messages("T")], 20)


async def test_delayed_messages_that_cannot_be_read_come_later(tmp_path: Path) -> None:
    files, clock = FaultyFiles(), ManualClock(BORN_MS)
    async with talking(tmp_path, files, clock=clock) as talk:
        broker = talk.running.broker
        for n in range(20):
            await talk.send("T", b"%d" % n, {"DELAY": "2"})
        files.fail_reads(path_contains="commitlog")
        await tries(files, clock, 6)
        assert broker.store.queues.max_offset("T", 0) == 0
        files.fail_reads(None, path_contains="commitlog")
        await clock.advance(2)
        await until(lambda: broker.store.queues.max_offset("T", 0) == 20)
        assert in_log([message.body for message in await talk.messages("T")], 20)
        assert broker.later.delays.passed_over == 0


@asynccontextmanager
async def halves(
    tmp_path: Path, files: FaultyFiles, count: int
) -> AsyncIterator[tuple[Scene, Payer, list[Half]]]:
    async with scene(tmp_path, files=files) as ours:
        payer = await ours.producer()
        yield ours, payer, [await payer.prepare(b"%d" % n) for n in range(count)]


async def test_half_messages_that_cannot_be_read_are_asked_about_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    async with halves(tmp_path, files, 10) as (ours, payer, _):
        files.fail_reads(path_contains="commitlog")
        for _ in range(3):
            await ours.round()
        assert ours.broker.transactions.finished.progress == 0
        assert [len(lines(caplog, word)) for word in ("store_unreadable", "half_", "check_round")] == [
            1,
            0,
            0,
        ]
        files.fail_reads(None, path_contains="commitlog")
        payer.outcome = COMMIT
        await ours.round()
        await until(lambda: len(payer.asked) >= 10)
        await until(lambda: ours.broker.store.queues.max_offset(ORDERS, 0) >= 10)
        assert in_log([message.body for message in await payer.orders()], 10)


async def test_the_end_of_a_transaction_that_cannot_be_read_is_not_found_missing(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with halves(tmp_path, files, 2) as (ours, payer, (first, second)):
        ours.broker.transactions.recent.clear()
        files.fail_reads(path_contains="commitlog")
        answer = await payer.end(first)
        assert answer.code == BUSY
        assert "commitlog" in (answer.remark or "")
        files.fail_reads(None, path_contains="commitlog")
        assert (await payer.end(first)).code == 0
        assert (await payer.end(second)).code == 0
        assert in_log([message.body for message in await payer.orders()], 2)
