"""Messages that are there more than once, by their numbers: against a plain count of the keys."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kerolox.pipeline.audit import duplicates
from kerolox.pipeline.audit.checks import TABLES
from kerolox.pipeline.audit.duplicates import KeyFiles, find_repeated, mixed, numbers_of, shares

Row = dict[str, Any]


def rows_of(count: int, store: int = 0, seed: int = 1) -> list[Row]:
    """Few different keys, so that many are there twice and more; a few records are those of a replica."""
    chance = random.Random(seed)
    return [
        {
            "store": store,
            "topic": chance.choice(["orders", "payments", "007", "bücher"]),
            "msg_id": f"{chance.randrange(count // 20):0{chance.choice([8, 32, 300])}X}",
            "reconsume_times": chance.choice([0, 0, 0, 1]),
            "copy_of": chance.choice([None, None, None, "replay monday a/b/0/1", "dlq resend 00"]),
            "queue_id": 0,
            "queue_offset": number,
            "physical_offset": 100 * number,
            "store_host": -4711,
            "stored_ms": 1_700_000_000_000 + number,
        }
        for number in range(count)
    ]


def write(directory: Path, rows: list[Row], blocks: int = 3, name: str = "part") -> None:
    files = KeyFiles(directory, name)
    size = -(-len(rows) // blocks)
    for at in range(0, len(rows), size):
        files.add(pa.Table.from_pylist(rows[at : at + size], schema=TABLES["keys"]))
    files.write()


def plainly(rows: list[Row]) -> dict[tuple[Any, ...], set[tuple[int, int]]]:
    places: dict[tuple[Any, ...], set[tuple[int, int]]] = defaultdict(set)
    for row in rows:
        key = (row["topic"], row["msg_id"], row["reconsume_times"], row["copy_of"])
        places[key].add((row["store_host"], row["physical_offset"]))
    return {key: found for key, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("share_bytes", [1 << 30, 700, 100])
def test_repeated_keys_are_those_of_a_plain_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share_bytes: int
) -> None:
    monkeypatch.setattr(duplicates, "SHARE_BYTES", share_bytes)
    monkeypatch.setattr(duplicates, "_ROW_GROUP_ROWS", 64)
    monkeypatch.setattr(duplicates, "_CHUNK", 10)
    rows = rows_of(3000)
    replica = [{**row, "store": 1} for row in rows[100:900]]
    for number, part in enumerate((rows[:1000], rows[1000:1001], rows[1001:], replica)):
        write(tmp_path, part, name=f"{number}")
    wanted = plainly(rows)
    assert len(wanted) > 300
    found, count = [], 0
    for share in shares(5000):
        some, here = find_repeated(str(tmp_path), 10_000, share)
        found += some
        count += here
    assert count == len(found) == len(wanted)
    assert {tuple(row[name] for name in duplicates.SAME): row["copies"] for row in found} == {
        key: len(places) for key, places in wanted.items()
    }
    for row in found:
        stored = [place["stored_ms"] for place in row["places"]]
        assert stored == sorted(stored)
        assert {place["msg_id"] for place in row["places"]} == {row["msg_id"]}


def test_what_is_more_than_can_be_kept_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_CHUNK", 7)
    rows = rows_of(1000)
    write(tmp_path, rows)
    found, count = find_repeated(str(tmp_path), 20, shares(1)[0])
    assert (len(found), count) == (20, len(plainly(rows)))


def test_without_keys_nothing_is_repeated(tmp_path: Path) -> None:
    assert find_repeated(str(tmp_path), 10, shares(0)[0]) == ([], 0)
    KeyFiles(tmp_path, "empty").write()
    assert list(tmp_path.iterdir()) == []


def test_shares_cover_every_number_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "SHARE_BYTES", 10)
    found = shares(95)
    assert (len(found), found[0][0], found[-1][1]) == (10, 0, (1 << 64) - 1)
    assert all(high + 1 == low for (_, high), (low, _) in pairwise(found))


def test_a_text_has_its_number_wherever_it_lies() -> None:
    texts = ["", "a", "b", "ab", "ba", None, "a" * 40_000, "aa", "\0", "ä"]
    whole = numbers_of(pa.array(texts))
    assert numbers_of(pa.array(texts).slice(3, 4)).tolist() == whole[3:7].tolist()
    assert [numbers_of(pa.array([text], pa.string()))[0] for text in texts] == whole.tolist()
    different = [numbers_of(pa.array([text]))[0] for text in texts if text]
    assert len(set(different)) >= len(different) - 1  # of "\0" it is that of an empty one


def test_numbers_of_texts_that_are_alike_differ() -> None:
    ids = pa.array([f"7F000001{number:024X}" for number in range(200_000)])
    zero = np.zeros(len(ids), np.int64)
    assert len(np.unique(mixed(numbers_of(ids), zero))) == len(ids)
    assert len(np.unique(mixed(zero, np.arange(len(ids))))) == len(ids)
