"""What inspect shows of each kind of file."""

from __future__ import annotations

import json
import os
import struct
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.dispatch.kit import options_for

from kerolox.errors import KeroloxError
from kerolox.protocol.properties import pack
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.inspect import Kind, UnknownKind, body_text, kind_of, rows
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.mend import fillers
from kerolox.store.offline.summary import summarize
from kerolox.testing.clock import ManualClock

T0 = 1_700_000_000_000


async def fill(path: Path, count: int = 40) -> list[tuple[int, int, int]]:
    async with MessageStore(options_for(path), clock=ManualClock()) as store:
        return [
            await store.put("T", 0, f"body {n}".encode(), pack({"TAGS": "a", "KEYS": f"k{n}"}))
            for n in range(count)
        ]


def spoil(path: Path, at: int) -> None:
    path.write_bytes(_edited(path.read_bytes(), at, b"\xff"))


def log_file(path: Path, start: int = 0) -> str:
    return str(path / "commitlog" / f"{start:020d}")


async def test_log_records_and_the_end_of_a_file(tmp_path: Path) -> None:
    places = await fill(tmp_path)
    shown = list(rows(log_file(tmp_path)))
    inside = [place for place in places if place[0] < 4096]
    assert [row["offset"] for row in shown[:-1]] == [place[0] for place in inside]
    assert shown[0] | {"bornTimestamp": 0} == {
        "offset": 0, "inFile": 0, "record": "message", "size": places[0][2], "topic": "T", "queueId": 0,
        "queueOffset": 0, "storeTimestamp": T0, "bornTimestamp": 0, "bornHost": "127.0.0.1:10911",
        "id": "7F00000100002A9F0000000000000000", "flag": 0, "sysFlag": 0, "reconsumeTimes": 0,
        "preparedOffset": 0, "properties": {"TAGS": "a", "KEYS": "k0"}, "bodyBytes": 6, "body": "body 0",
    }  # fmt: skip
    assert shown[-1]["record"] == "blank"
    last = list(rows(log_file(tmp_path, 4096)))
    assert last[-1]["record"] == "unwritten"


async def test_from_an_offset_and_over_damage(tmp_path: Path) -> None:
    places = await fill(tmp_path)
    assert next(rows(log_file(tmp_path), start=places[7][0]))["offset"] == places[7][0]
    assert next(rows(log_file(tmp_path), start=places[7][0] + 1))["offset"] == places[8][0]
    second = next(place for place in places if place[0] >= 4096)
    assert next(rows(log_file(tmp_path, 4096), start=second[0]))["inFile"] == 0
    spoil(Path(log_file(tmp_path)), places[3][0] + 88)
    shown = list(islice(rows(log_file(tmp_path)), 6))
    assert [row["record"] for row in shown] == ["message"] * 3 + ["damaged"] + ["message"] * 2
    assert shown[3]["size"] == places[3][2]
    assert "CRC" in shown[3]["problem"]


def test_records_of_a_repair_say_so(tmp_path: Path) -> None:
    path = tmp_path / "commitlog" / f"{0:020d}"
    path.parent.mkdir()
    path.write_bytes(b"".join(fillers(0, 300, T0)).ljust(400, b"\0"))
    assert [row["record"] for row in rows(str(path))] == ["repaired", "unwritten"]


async def test_queue_entries(tmp_path: Path) -> None:
    places = await fill(tmp_path, 60)
    path = str(tmp_path / "consumequeue/T/0" / f"{0:020d}")
    shown = list(rows(path))
    assert shown[5] == {
        "queueOffset": 5,
        "entry": "message",
        "offset": places[5][0],
        "size": places[5][2],
        "tagsCode": 97,
    }
    second = list(rows(str(tmp_path / "consumequeue/T/0" / f"{1000:020d}")))
    assert [row["entry"] for row in second] == ["message"] * 10 + ["unwritten"]
    assert second[0]["queueOffset"] == 50
    assert next(rows(str(tmp_path / "consumequeue/T/0" / f"{1000:020d}"), start=55))["queueOffset"] == 55


async def test_index_entries(tmp_path: Path) -> None:
    places = await fill(tmp_path, 10)
    path = str(tmp_path / "index" / os.listdir(tmp_path / "index")[0])
    with pytest.raises(UnknownKind, match="--slots"):
        list(rows(path))
    head, first, *rest = rows(path, slots=100)
    assert head["entries"] == 10
    assert (first["index"], first["offset"], first["previous"]) == (1, 0, 0)
    assert [row["offset"] for row in rest] == [place[0] for place in places[1:]]


async def test_small_files(tmp_path: Path) -> None:
    await fill(tmp_path, 3)
    (tmp_path / "abort").write_text("4711")
    marks = {row["field"]: row["value"] for row in rows(str(tmp_path / "kerolox.marks"))}
    checkpoint = {row["field"]: row["value"] for row in rows(str(tmp_path / "checkpoint"))}
    assert marks["queues"] == 1
    assert checkpoint["logFlushed"] == T0
    assert list(rows(str(tmp_path / "abort"))) == [{"field": "content", "value": "4711"}]
    assert list(rows(str(tmp_path / "lock"))) == [{"field": "content", "value": "kero"}]


def test_tables_in_javas_dialect_and_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text('{\n\t"offsetTable":{\n\t\t"T@g":{0:250,1:251\n\t\t}\n\t}\n}')
    assert list(rows(str(path))) == [{"table": "offsetTable", "key": "T@g", "value": {"0": 250, "1": 251}}]
    path = tmp_path / "users.json"
    path.write_text(
        '{"users":{"ann":{"password":"pw1","secretKey":"pw2","type":"Super"}},"accessToken":"pw3"}'
    )
    text = json.dumps(list(rows(str(path))))
    assert "pw" not in text.replace("password", "")
    assert "Super" in text


def test_timer_files_of_rocketmq(tmp_path: Path) -> None:
    wheel = tmp_path / "timerwheel"
    wheel.write_bytes(bytes(32) + struct.pack(">qqqii", 1_700_000_000, 0, 52, 2, 0) + bytes(64))
    assert list(rows(str(wheel))) == [
        {"slot": 1, "time": 1_700_000_000, "firstPosition": 0, "lastPosition": 52, "messages": 2, "magic": 0}
    ]
    log = tmp_path / "timerlog" / f"{0:020d}"
    log.parent.mkdir()
    unit = struct.pack(">iqiqiqiiq", 52, -1, 1, T0, 5000, 1234, 99, 7, 0)
    log.write_bytes(unit + struct.pack(">iqI", 100, 0, 0xCBD43194).ljust(100, b"\0"))
    shown = list(rows(str(log)))
    assert shown[0]["dueMs"] == T0 + 5000
    assert [row["unit"] for row in shown] == ["message", "blank"]
    check = tmp_path / "config" / "timercheck"
    check.parent.mkdir()
    check.write_bytes(struct.pack(">7q", 1, 2, 3, 4, 5, 6, 7).ljust(4096, b"\0"))
    assert [row["value"] for row in rows(str(check))] == [1, 2, 3, 4, 5, 6, 7]


def test_kinds_by_place_and_name(tmp_path: Path) -> None:
    for name, kind in {
        "checkpoint": Kind.CHECKPOINT,
        "config/topics.json": Kind.TABLE,
        "config/topics.json.bak": Kind.TABLE,
        "config/timermetrics": Kind.TABLE,
        "index/20240101000000000": Kind.INDEX,
        "timerlog/00000000000000000000": Kind.TIMER_LOG,
        "commitlog/00000000000000000000": Kind.LOG,
        "consumequeue/T/0/00000000000000000000": Kind.QUEUE,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(64))
        assert kind_of(str(path)) is kind, name
    with pytest.raises(UnknownKind, match="--kind"):
        kind_of(str(tmp_path / "notes.txt"))


def test_bodies() -> None:
    assert body_text("zwölf\n".encode()) == "zwölf\n"
    assert body_text(b"\x00\x01") == "0x0001"
    assert body_text(b"\xff" * 100) == "0x" + "ff" * 32 + "..."
    assert body_text(b"x" * 300) == "x" * 200 + "..."


async def test_summary_of_a_store(tmp_path: Path) -> None:
    places = await fill(tmp_path, 60)
    found = summarize(find_layout(tmp_path, options_for(tmp_path)))
    assert found["queues"] == [{"topic": "T", "queue": 0, "min": 0, "max": 60, "files": 2}]
    assert found["log"]["toAtLeast"] == places[-1][0] + places[-1][2]
    assert found["state"] == "stopped cleanly"
    assert found["index"][0]["entries"] == 60
    async with MessageStore(options_for(tmp_path), clock=ManualClock()):
        assert "in use" in summarize(find_layout(tmp_path, options_for(tmp_path)))["state"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=400),
        st.tuples(st.integers(0, 250), st.binary(min_size=1, max_size=20)).map(
            lambda edit: _edited(b"".join(fillers(0, 260, T0)), *edit)
        ),
    ),
    kind=st.sampled_from(Kind),
)
def test_any_bytes_as_any_kind(tmp_path: Path, data: bytes, kind: Kind) -> None:
    path = tmp_path / f"{0:020d}"
    path.write_bytes(data)
    try:
        for row in islice(rows(str(path), kind, slots=3), 1000):
            json.dumps(row)
    except KeroloxError:
        pass


def _edited(data: bytes, at: int, patch: bytes) -> bytes:
    return data[:at] + patch + data[at + len(patch) :]
