"""Filters on properties: the short way gives what the long one gives, compiled or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.dispatch.kit import Rig, rig_at

from kerolox.compiled import load
from kerolox.protocol.filters.sql import compile_filter
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack
from kerolox.protocol.record import encode_message
from kerolox.store.queue import property_scan
from kerolox.store.queue.entry import BLANK_SIZE, SIMPLE
from kerolox.store.queue.property_scan import ScanEnd

CORE = load()
WAYS: list[Any] = [pytest.param(property_scan._scan_properties, id="python")]
if CORE is not None:
    WAYS.append(pytest.param(CORE.scan_properties, id="compiled"))


def laid_out(*values: str, at: int = 1000) -> tuple[bytes, bytes]:
    """Messages with a property back to back, and their entries."""
    block = entries = b""
    for value in values:
        record = encode_message(StoredMessage("T", b"body", 0, 0, 0, pack({"a": value})))
        entries += SIMPLE.pack(at + len(block), len(record), 0)
        block += record
    return block, entries


def run(scan_properties: Any, block: bytes, entries: bytes, answers: dict[bytes, bool], **given: Any) -> Any:
    values = {
        "number": 0,
        "at": 1000,
        "floor": 0,
        "count": 0,
        "count_max": 32,
        "size": 0,
        "bytes_max": 1 << 20,
    }
    values |= given
    taken: list[bytes] = []
    found = scan_properties(
        entries, values["number"], block, values["at"], values["floor"], (b"a",), answers, taken,
        values["count"], values["count_max"], values["size"], values["bytes_max"],
    )  # fmt: skip
    return found, taken


@pytest.mark.parametrize("scan_properties", WAYS)
def test_what_passes_is_taken_and_the_rest_is_counted(scan_properties: Any) -> None:
    block, entries = laid_out("1", "2", "1", "2", "2")
    size = len(block) // 5
    answers = {b"1\2": False, b"2\2": True}
    assert run(scan_properties, block, entries, answers) == (
        (5, 3, 3 * size, 2, ScanEnd.DONE),
        [block[size : 2 * size], block[3 * size : 4 * size], block[4 * size :]],
    )
    assert run(scan_properties, block, entries, answers, number=4)[0] == (5, 1, size, 0, ScanEnd.DONE)
    assert run(scan_properties, block, entries, answers, number=5)[0] == (5, 0, 0, 0, ScanEnd.DONE)
    # Limits count with what was taken before; the first one always fits.
    assert run(scan_properties, block, entries, answers, count_max=1)[0] == (2, 1, size, 1, ScanEnd.DONE)
    assert run(scan_properties, block, entries, answers, bytes_max=2 * size)[0] == (
        4,
        2,
        2 * size,
        2,
        ScanEnd.DONE,
    )
    assert run(scan_properties, block, entries, answers, bytes_max=1)[0] == (2, 1, size, 1, ScanEnd.DONE)
    assert run(scan_properties, block, entries, answers, count=31, size=7)[0] == (
        2,
        32,
        size + 7,
        1,
        ScanEnd.DONE,
    )


@pytest.mark.parametrize("scan_properties", WAYS)
def test_it_stops_where_somebody_has_to_be_asked(scan_properties: Any) -> None:
    block, entries = laid_out("1", "2", "1")
    size = len(block) // 3
    known = {b"1\2": True}
    assert run(scan_properties, block, entries, known)[0] == (1, 1, size, 0, ScanEnd.UNKNOWN)
    known[b"2\2"] = True
    assert run(scan_properties, block[:-1], entries, known)[0] == (2, 2, 2 * size, 0, ScanEnd.ELSEWHERE)
    assert run(scan_properties, block, entries, known, at=1001)[0] == (0, 0, 0, 0, ScanEnd.ELSEWHERE)
    assert run(scan_properties, block, entries, known, floor=1001)[0] == (0, 0, 0, 0, ScanEnd.ODD)
    assert run(scan_properties, block, SIMPLE.pack(1000, 0, 0), known)[0] == (0, 0, 0, 0, ScanEnd.ODD)
    assert run(scan_properties, block, SIMPLE.pack(1000, BLANK_SIZE, 0), known)[0] == (
        0,
        0,
        0,
        0,
        ScanEnd.ELSEWHERE,
    )


@pytest.mark.skipif(CORE is None, reason="nothing is compiled here")
def test_wrong_arguments() -> None:
    assert CORE is not None
    with pytest.raises(TypeError):
        CORE.scan_properties(b"")
    with pytest.raises(ValueError, match="counted"):
        run(CORE.scan_properties, *laid_out("1"), {}, number=-1)
    block, entries = laid_out("1")
    with pytest.raises(TypeError, match="names"):
        CORE.scan_properties(entries, 0, block, 1000, 0, ("a",), {}, [], 0, 1, 0, 1)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 16) as rig:
        yield rig


async def test_a_read_finds_the_same_either_way(rig: Rig) -> None:
    store = await rig.open()
    for number in range(400):  # in several files, with others between them
        await store.put("T", 0, b"x" * (number % 7 * 40), pack({"n": str(number), "odd": str(number % 2)}))
        if number % 3 == 0:
            await store.put("U", 0, b"between")
    for text in ("n > 20 AND odd = '1'", "n BETWEEN 100 AND 103", "n < 0", "gone IS NULL", "n = 399"):
        for offset, count, bytes_max in ((0, 32, 1 << 20), (30, 5, 900), (390, 32, 1 << 20), (0, 1, 1)):
            condition = compile_filter(text)

            def plainly(data: bytes, at: int, size: int, asked: Any = condition) -> bool:
                return bool(asked(data, at, size))

            long = await store.queues.read("T", 0, offset, count, bytes_max=bytes_max, record_filter=plainly)
            for _ in "12":  # not knowing the answers, and knowing them
                found = await store.queues.read(
                    "T", 0, offset, count, bytes_max=bytes_max, record_filter=condition
                )
                assert found == long, text
            assert condition.answers


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("123"), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 2000))
def test_both_sift_the_same(values: list[str], count_max: int, bytes_max: int) -> None:
    block, entries = laid_out(*values)
    answers = {b"1\2": True, b"2\2": False}
    ways = (
        [property_scan._scan_properties]
        if CORE is None
        else [property_scan._scan_properties, CORE.scan_properties]
    )
    found = [run(way, block, entries, answers, count_max=count_max, bytes_max=bytes_max) for way in ways]
    assert found[0] == found[-1]
