"""Pulls with ``scanBytes``: who reads a queue through gets large answers; nobody else sees a difference."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.record import decode_records
from kerolox.store.queue.reading import JUDGED_MAX, READS_MAX, SCAN_COUNT_MAX
from kerolox.testing.broker import running_broker
from kerolox.testing.faults import FaultyFiles

from .talk import Talk

MIB = 1 << 20
BODY = b"x" * 100


@pytest.fixture(params=[JSON, BINARY], ids=["json", "binary"])
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Talk]:
    async with running_broker(directory=tmp_path) as running, Dialer(encoding=request.param) as dialer:
        yield Talk(dialer, running)


async def fill(talk: Talk, count: int, *, queues: int = 1, body: bytes = BODY) -> None:
    """By the store itself, one message for each queue in turn."""
    store = talk.running.broker.store
    await talk.send("T")
    for number in range(1, count):
        cursor = store.log.cursor("T", number % queues)
        tag = b"TAGS\x01" + b"ab"[number % 2 :][:1] + b"\x02"
        store.log.append(cursor, body, tag, born_timestamp=1, born_host=bytes(8))
    store.log.write()


def numbers(answer: Any) -> list[int]:
    return [message.queue_offset for message in decode_records(answer.body)]


async def scan(talk: Talk, offset: int = 0, **fields: Any) -> Any:
    asked = {"max_msg_nums": 100_000, "scan_bytes": MIB, **fields}
    return await talk.pull("T", asked.pop("queue_id", 0), offset, **asked)


async def test_a_scan_gets_as_many_bytes_as_it_asks_for(talk: Talk) -> None:
    await fill(talk, 4000)
    size = len((await scan(talk, 1, max_msg_nums=1)).body)
    answer = await scan(talk)
    assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (0, "FOUND", "4000")
    assert numbers(answer) == list(range(4000))
    assert numbers(await scan(talk, 5, max_msg_nums=700)) == list(range(5, 705))
    assert numbers(await scan(talk, 5, scan_bytes=100 * size)) == list(range(5, 105))
    assert numbers(await scan(talk, 5, scan_bytes=100 * size, max_msg_bytes=50 * size)) == list(range(5, 55))
    assert numbers(await scan(talk, 5, scan_bytes=1)) == [5]  # one at least
    lite = await scan(talk, 3000, code=RequestCode.LITE_PULL_MESSAGE)
    assert numbers(lite) == list(range(3000, 4000))


async def test_other_pulls_get_what_they_always_got(talk: Talk) -> None:
    await fill(talk, 100)
    for scan_bytes in (None, 0, -1):
        assert numbers(await scan(talk, scan_bytes=scan_bytes)) == list(range(32))


async def test_the_operator_has_the_last_word(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await fill(talk, 3000)
        assert len(numbers(await scan(talk, scan_bytes=12 * MIB))) == 3000
        size = len((await scan(talk, 1, max_msg_nums=1)).body)
        for limit, expected in ((50 * size, 50), (0, 32)):
            body = f"maxTransferBytesOfScan={limit}".encode()
            answer = await dialer.call(running.address, RequestCode.UPDATE_BROKER_CONFIG, None, body)
            assert answer.code == 0, answer.remark
            assert len(numbers(await scan(talk, 1, scan_bytes=12 * MIB))) == expected


async def test_messages_of_several_queues_lie_between_each_other(talk: Talk) -> None:
    await fill(talk, 3000, queues=3)
    for queue_id in range(3):
        answer = await scan(talk, queue_id=queue_id)
        messages = decode_records(answer.body)
        assert [(m.queue_id, m.queue_offset) for m in messages] == [(queue_id, n) for n in range(1000)]


async def test_messages_far_from_each_other_are_read_by_a_thread(talk: Talk) -> None:
    """They are in memory, but to collect them takes longer than others should wait."""
    count = READS_MAX + 10
    store = talk.running.broker.store
    await talk.send("T")
    for number in range(1, 2 * count):
        cursor = store.log.cursor("T" if number % 2 == 0 else "Others", 0)
        store.log.append(
            cursor, BODY if number % 2 == 0 else BODY * 300, born_timestamp=1, born_host=bytes(8)
        )
    store.log.write()
    assert numbers(await scan(talk)) == list(range(count))
    assert numbers(await scan(talk, 7, max_msg_nums=20)) == list(range(7, 27))


async def test_filters_choose_among_more(talk: Talk) -> None:
    await fill(talk, 2000)
    odd = await scan(talk, 1, subscription="b")
    assert set(numbers(odd)) == set(range(1, int(odd.fields["nextBeginOffset"]), 2))
    assert len(numbers(odd)) > 200
    by_sql = await scan(talk, 1, subscription="TAGS = 'b'", expression_type="SQL92")
    assert numbers(by_sql) == numbers(odd)
    nothing = await scan(talk, 1, subscription="c")
    assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert int(nothing.fields["nextBeginOffset"]) > 200


async def test_what_is_not_in_memory_comes_from_a_thread(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with running_broker(directory=tmp_path, files=files) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await fill(talk, 3000, queues=2)
        files.is_cold = lambda path, offset, size: "commitlog" in path  # type: ignore[method-assign]
        before = files.cold_answers
        assert numbers(await scan(talk)) == list(range(1500))
        assert files.cold_answers > before


async def test_a_broker_that_started_again_looks_at_what_it_gives(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        await fill(Talk(dialer, running), 3000, body=b"y" * 1000)
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        reader = running.broker.store.reader
        reader.checked_from = running.broker.store.log.max_offset  # as after a start that checked little
        found: list[int] = []
        while len(found) < 3000:
            found += numbers(await scan(talk, len(found)))
        assert found == list(range(3000))


async def test_entries_without_a_message_are_passed_over(talk: Talk) -> None:
    """Deleted files leave entries behind: they are judged one by one, a limited number at a time."""
    await fill(talk, 2 * JUDGED_MAX, body=b"z" * 12_000)
    store = talk.running.broker.store
    low = store.log.min_offset + store.segments.size
    store.segments.delete_before(low)
    offset, found = 0, []
    for _ in range(2 * JUDGED_MAX):
        answer = await scan(talk, offset, scan_bytes=12 * MIB)
        assert answer.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY)
        found += numbers(answer) if answer.code == 0 else []
        offset = int(answer.fields["nextBeginOffset"])
        if offset == 2 * JUDGED_MAX:
            break
    assert found == list(range(found[0], 2 * JUDGED_MAX))
    assert 0 < found[0] < JUDGED_MAX * 2
    assert SCAN_COUNT_MAX > JUDGED_MAX
