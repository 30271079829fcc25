"""The log of a DLedger member: its bytes, what survives what, and a plain log that became one."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.dispatch.kit import (
    LOG_FILE,
    SYNC,
    Rig,
    bodies,
    flip,
    options_for,
    overwrite,
    props,
    rig_at,
    tree,
    until,
)

import kerolox.store
from kerolox.errors import OptionError
from kerolox.pipeline.audit.plan import plan_stores
from kerolox.protocol.ledger_entry import ENTRY_BYTES_MAX, ENTRY_HEAD_BYTES, LedgerEntry
from kerolox.protocol.ledger_scan import (
    UNIT_BYTES,
    Mark,
    Unit,
    decode_head,
    decode_unit,
    encode_entry_blank,
    encode_head,
    encode_unit,
    frame,
    scan_entries,
)
from kerolox.protocol.record import decode_record, encode_record, topic_field
from kerolox.protocol.record_scan import CHECK_BODY, PHYSICAL_OFFSET, SIZE, Stop
from kerolox.protocol.reserved import SELF_TEST_TOPIC
from kerolox.replication.own_log import OwnLog
from kerolox.spark.store.plan import find_store
from kerolox.store.errors import Operation, OutOfLedger, StoreError
from kerolox.store.failures import Kind
from kerolox.store.ledger import BARRIER_BODY, StoredLedger
from kerolox.store.log import ledger_index
from kerolox.store.log.cursors import AppendRefused
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.inspect import rows
from kerolox.store.offline.layout import Layout, NotForEntries, find_layout
from kerolox.store.offline.mend import plan_cut, plan_skip
from kerolox.store.offline.summary import summarize
from kerolox.store.offline.verify import Report, verify
from kerolox.store.rebuild import rebuild
from kerolox.store.recovery import CorruptLog
from kerolox.store.state import Obstacle

LEDGER = {"ledger": True, "ledger_self_id": "n0"}
DATA = "dledger-n0/data"
INDEX = "dledger-n0/index"
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


@pytest.fixture(autouse=True)
def small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several files, as of an old log, and quickly copied."""
    monkeypatch.setattr(ledger_index, "INDEX_FILE_BYTES", 24 * UNIT_BYTES)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path / "store", **LEDGER) as rig:
        yield rig


def ledger_of(store: MessageStore) -> StoredLedger:
    assert store.ledger is not None
    return store.ledger


def body_of(number: int) -> bytes:
    return b"<%d>" % number * (5 + number % 40)


async def fill(store: MessageStore, count: int, first: int = 0) -> list[tuple[int, int, int]]:
    return [
        await store.put("T", i % 2, body_of(i), props(KEYS=f"k{i}", TAGS="tag"))
        for i in range(first, first + count)
    ]


async def holds(store: MessageStore, count: int) -> None:
    """Queues, index of keys and log agree, and hold exactly the first ``count`` messages."""
    for queue_id in (0, 1):
        assert await bodies(store, "T", queue_id) == [body_of(i) for i in range(queue_id, count, 2)]
    for i in range(count):
        found = await store.find_by_key("T", f"k{i}")
        assert [decode_record(record).body for record in found] == [body_of(i)], f"key k{i}"
    assert ledger_of(store).end_index == count - 1
    entries = await all_entries(ledger_of(store))
    assert [decode_record(entry.body).body for entry in entries] == [body_of(i) for i in range(count)]
    assert [entry.index for entry in entries] == list(range(count))


async def all_entries(ledger: StoredLedger) -> list[LedgerEntry]:
    entries: list[LedgerEntry] = []
    index = ledger.begin_index
    while 0 <= index <= ledger.end_index:
        more = await ledger.read(index, 7, 1000)
        entries += more
        index += len(more)
    return entries


def layout_of(path: Path) -> Layout:
    return find_layout(path, options_for(path, **LEDGER))


def clean(path: Path) -> Report:
    report = verify(layout_of(path))
    assert report.clean, report.findings
    return report


def data_files(path: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(path / DATA))


# --- bytes -----------------------------------------------------------------------------------------------


def test_the_bytes_apache_writes() -> None:
    """Measured with DLedger 0.3.2: the first entry, with a body of 140 bytes."""
    head = f"00000001 000000bc {'0000000000000000 ' * 3} 00000000 00000000 00000000 0000008c"
    unit = "00000001 0000000000000000 000000bc 0000000000000000 0000000000000000"
    pieces, units = frame([bytes(140)], 0, 0, 0)
    assert pieces[0] == encode_head(0, 0, 0, 140) == bytes.fromhex(head)
    assert units == encode_unit(Unit(0, 0, 0, 188)) == bytes.fromhex(unit)
    assert encode_entry_blank(100) == bytes.fromhex("ffffffff 00000064")
    page = Path(kerolox.store.__file__).with_name("FORMAT.md").read_text()
    example = page.partition("with a record of 140 bytes")[2]
    shown = re.findall(r"^[0-9a-f]{6}  ((?:[0-9a-f]{2} )+)", example, re.MULTILINE)
    assert bytes.fromhex("".join(shown[:5])) == pieces[0] + units, "the page shows other bytes"


def record_at(pos: int, body: bytes = b"hello", number: int = 0) -> bytes:
    physical, field = pos + ENTRY_HEAD_BYTES, topic_field(b"T")
    return encode_record(0, 0, number, physical, 0, 1, HOST, 2, HOST, 0, 0, body, field, b"TAGS\x01a\x02")


def some_entries(sizes: list[int], term: int = 3, first: int = 5, pos: int = 8192) -> bytes:
    parts: list[bytes] = []
    for number, size in enumerate(sizes):
        record = record_at(pos, bytes(range(256)) * (size // 256) + bytes(size % 256), number)
        pieces, _ = frame([record], first + number, term, pos)
        parts += pieces
        pos += ENTRY_HEAD_BYTES + len(record)
    return b"".join(parts)


@given(st.lists(st.integers(0, 700), min_size=1, max_size=8), st.integers(0, 40), st.data())
def test_a_scan_finds_what_is_whole_before_a_cut_or_a_flipped_bit(
    sizes: list[int], term: int, data: st.DataObject
) -> None:
    log = some_entries(sizes, term)
    whole, last = scan_entries(log, 8192, CHECK_BODY, after=Mark(4, term))
    assert (len(whole.entries), whole.position, whole.stop) == (len(sizes), len(log), Stop.END)
    assert last == Mark(4 + len(sizes), term)
    ends = [entry[PHYSICAL_OFFSET] + entry[SIZE] - 8192 for entry in whole.entries]
    at = data.draw(st.integers(0, len(log) - 1))
    cut, _ = scan_entries(log[:at], 8192, CHECK_BODY, after=Mark(4, term))
    assert cut.entries == [entry for entry, end in zip(whole.entries, ends, strict=True) if end <= at]
    assert cut.stop is (Stop.END if at in (0, *ends) else Stop.INCOMPLETE)
    bit = data.draw(st.integers(0, 7))
    spoilt = bytearray(log)
    spoilt[at] ^= 1 << bit
    found, _ = scan_entries(bytes(spoilt), 8192, CHECK_BODY, after=Mark(4, term))
    before = sum(end <= at for end in ends)
    assert found.entries[:before] == whole.entries[:before], "nothing before the damage is lost"
    within = at - (ends[before - 1] if before else 0)
    if within < 32 or 44 <= within < 60 or 76 <= within < 84:  # of head and record: all that places it
        assert len(found.entries) == before or 16 <= within < 24, "a raised term is no damage in itself"


def test_a_scan_refuses_what_does_not_continue() -> None:
    log = some_entries([10, 20])
    for after in (Mark(3, 0), Mark(5, 0), Mark(4, 4)):
        assert scan_entries(log, 8192, after=after)[0].stop is Stop.CORRUPT
    assert scan_entries(log, 4096)[0].stop is Stop.CORRUPT
    assert scan_entries(bytes(100), 0)[0].stop is Stop.UNWRITTEN
    assert scan_entries(encode_entry_blank(50) + bytes(42), 0)[0].stop is Stop.BLANK
    assert scan_entries(encode_head(5, 3, 8192, 0), 8192)[0].what == "entry 5 holds no record: end"
    assert decode_head(bytes(48)) is None
    assert decode_unit(bytes(32)) is None


# --- a store ---------------------------------------------------------------------------------------------


async def test_messages_and_their_places(rig: Rig) -> None:
    store = await rig.open()
    places = await fill(store, 40)
    await holds(store, 40)
    entries = await all_entries(ledger_of(store))
    assert [place[0] for place in places] == [entry.pos + ENTRY_HEAD_BYTES for entry in entries]
    assert [place[2] for place in places] == [len(entry.body) for entry in entries]
    assert decode_record(await store.message_at(places[7][0])).body == body_of(7)
    assert store.log.max_offset == entries[-1].end
    assert store.log.earliest_ms > 0
    assert len(data_files(rig.path)) > 3
    await store.close()
    assert (rig.path / "dledger-n0/checkpoint").read_text() == "committedIndex=39\nendIndex=39\n"
    assert not (rig.path / "commitlog").exists()
    assert clean(rig.path).records == 40
    store = await rig.open()
    await holds(store, 40)
    await fill(store, 5, 40)
    await holds(store, 45)
    await store.close()
    clean(rig.path)


async def test_every_entry_leaves_room_for_a_blank(rig: Rig) -> None:
    """Whatever fits by a byte: the rest of a file is at least 8 bytes, or the entry goes to the next."""
    store = await rig.open()
    for size in range(1880, 1960):
        await store.put("T", 0, bytes(size))
    await store.close()
    assert clean(rig.path).records == 80
    for start in data_files(rig.path)[:-1]:
        data = (rig.path / DATA / f"{start:020d}").read_bytes()
        result, _ = scan_entries(data, start)
        assert result.stop is Stop.BLANK
        assert data[result.position :][:8] == encode_entry_blank(LOG_FILE - result.position)
        assert not any(data[result.position + 8 :])


async def test_batches_are_an_entry_for_each_message(rig: Rig) -> None:
    store = await rig.open()
    cursor = store.log.cursor("T", 0)
    for first in range(0, 60, 6):
        items = [(0, body_of(i), props(TAGS="tag")) for i in range(first, first + 6)]
        store.log.append_batch(cursor, items, born_timestamp=1, born_host=HOST)
        store.log.write()
    assert await bodies(store) == [body_of(i) for i in range(60)]
    assert ledger_of(store).end_index == 59
    await store.close()
    assert clean(rig.path).records == 60


async def test_too_large_for_an_entry(rig: Rig) -> None:
    store = await rig.open(commit_log_file_bytes=16 << 20)
    await store.put("T", 0, bytes(100))
    cursor = store.log.cursor("T", 0)
    beside = (await store.put("T", 0, b""))[2] + ENTRY_HEAD_BYTES
    store.options.body_bytes_max = 8 << 20
    largest = bytes(ENTRY_BYTES_MAX - beside)
    for body in (largest + b"x", bytes(5 << 20)):
        with pytest.raises(AppendRefused, match="the limit in a DLedger group"):
            await store.put("T", 0, body)
        with pytest.raises(AppendRefused, match="the limit in a DLedger group"):
            store.log.append_batch(cursor, [(0, b"a", b""), (0, body, b"")], born_timestamp=1, born_host=HOST)
    assert (store.log.unwritten, cursor.next_offset) == (0, 2)
    await store.put("T", 0, largest)
    assert ledger_of(store).end_index == 2
    await store.close()
    assert verify(find_layout(rig.path, store.options)).clean


async def test_a_kill_loses_nothing(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 30)
    await rig.kill(store)
    shutil.rmtree(rig.path / INDEX)
    store = await rig.open()
    await holds(store, 30)
    await rig.kill(store)
    store = await rig.open()
    await fill(store, 10, 30)
    await holds(store, 40)
    await store.close()
    clean(rig.path)


async def test_power_loss_keeps_what_was_acknowledged(rig: Rig) -> None:
    count = 0
    for seed in range(12):
        store = await rig.open(flush_mode=SYNC)
        await holds(store, count)
        await fill(store, 9, count)
        count += 9
        if seed % 3 == 0:
            await store.housekeeper.flush()
        await rig.lose_power(store, seed)
    store = await rig.open(flush_mode=SYNC)
    await holds(store, count)
    await store.close()
    clean(rig.path)


async def test_a_torn_end_is_cut_at_every_byte(rig: Rig, tmp_path: Path) -> None:
    store = await rig.open()
    places = await fill(store, 4)
    await rig.kill(store)
    shutil.copytree(rig.path, tmp_path / "whole")
    start, end = places[-1][0] - ENTRY_HEAD_BYTES, places[-1][0] + places[-1][2]
    for at in [*range(start, start + 56, 3), *range(start + 56, end, 7), end - 1]:
        shutil.rmtree(rig.path)
        shutil.copytree(tmp_path / "whole", rig.path)
        overwrite(rig.path / DATA / f"{0:020d}", at, bytes(end - at))
        (rig.path / "kerolox.marks").unlink()
        (rig.path / "kerolox.sums").unlink(missing_ok=True)
        store = await rig.open()
        await holds(store, 3)
        await fill(store, 1, 3)
        await holds(store, 4)
        await store.close()


async def test_a_damaged_index_is_written_again(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 50)
    await store.close()
    for at in [0, 5, 20 * UNIT_BYTES + 3, 49 * UNIT_BYTES, 49 * UNIT_BYTES + 31, 50 * UNIT_BYTES]:
        start = at - at % (24 * UNIT_BYTES)
        flip(rig.path / INDEX / f"{start:020d}", at - start)
        report = verify(layout_of(rig.path))
        assert report.clean == (at >= 50 * UNIT_BYTES)
        (rig.path / "kerolox.sums").unlink()  # all of the log is read
        store = await rig.open()
        await holds(store, 50)
        await store.close()
        clean(rig.path)


async def test_damage_in_the_middle_is_refused(rig: Rig) -> None:
    store = await rig.open()
    places = await fill(store, 20)
    await store.close()
    (rig.path / "kerolox.sums").unlink()
    pristine = tree(rig.path)
    middle = places[6][0]
    head = [*range(16), *range(24, 32), 44]  # a raised term is seen in the next entry
    for at in [middle - ENTRY_HEAD_BYTES + at for at in head] + [middle + at for at in (0, 5, 28, 95)]:
        flip(rig.path / DATA / f"{0:020d}", at)
        before = tree(rig.path)
        with pytest.raises(CorruptLog, match="start this member with an empty store") as caught:
            await rig.open()
        assert caught.value.offset == middle - ENTRY_HEAD_BYTES
        assert {name: data for name, data in tree(rig.path).items() if name != "lock"} == {
            name: data for name, data in before.items() if name != "lock"
        }
        assert [finding.kind for finding in verify(layout_of(rig.path)).findings][:1] == ["damaged log"]
        flip(rig.path / DATA / f"{0:020d}", at)
    assert {name for name, data in tree(rig.path).items() if pristine.get(name) != data} <= {"lock"}


async def test_a_lower_term_behind_is_what_apaches_members_left_there(rig: Rig) -> None:
    """They cut by positions alone: the old bytes stay behind the end until others take their place."""
    store = await rig.open()
    ledger = ledger_of(store)
    await fill(store, 6)
    await rig.kill(store)
    data = rig.path / DATA / f"{0:020d}"
    old = data.read_bytes()
    store = await rig.open()
    entries = await all_entries(ledger_of(store))
    at = entries[3].pos
    record = record_at(at, b"newer", number=2)
    await rig.kill(store)
    overwrite(data, at, encode_head(3, 9, at, len(record)) + record)
    assert old[entries[4].pos :] == data.read_bytes()[entries[4].pos :]
    (rig.path / "kerolox.marks").unlink()
    (rig.path / "kerolox.sums").unlink()
    shutil.rmtree(rig.path / "consumequeue")
    store = await rig.open()
    ledger = ledger_of(store)
    assert (ledger.end_index, ledger.end_term) == (3, 9)
    with pytest.raises(OutOfLedger, match="cannot lead in term 8"):
        ledger.lead(8)
    await fill(store, 1, 4)
    assert ledger.end_term == 9
    await store.close()
    clean(rig.path)


async def test_old_files_go_and_the_index_with_them(rig: Rig) -> None:
    store = await rig.open(keep_hours=1, delete_pause_ms=0)
    ledger = ledger_of(store)
    await fill(store, 60)
    for name in os.listdir(rig.path / DATA)[:]:
        os.utime(rig.path / DATA / name, (0, 0))
    rig.clock.step_wall(2 * 3_600_000)
    store.expiry.order()
    await store.expiry.check()
    assert ledger.begin_index > 0
    assert ledger.begin_pos == data_files(rig.path)[0] == store.log.min_offset
    entries = await all_entries(ledger)
    assert [entry.index for entry in entries] == list(range(ledger.begin_index, 60))
    with pytest.raises(OutOfLedger):
        await ledger.read(ledger.begin_index - 1, 1, 1)
    begin = ledger.begin_index
    await store.close()
    clean(rig.path)
    shutil.rmtree(rig.path / INDEX)
    store = await rig.open()
    assert ledger_of(store).begin_index == begin
    assert await all_entries(ledger_of(store)) == entries
    await store.close()


# --- a plain log that went on as a DLedger log ---------------------------------------------------------


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("count", [0, 1, 30])
async def test_a_plain_log_goes_on(tmp_path: Path, count: int, crashed: bool) -> None:
    async with rig_at(tmp_path / "store") as rig:
        store = await rig.open()
        await fill(store, count)
        if crashed:
            await rig.kill(store)
        else:
            await store.close()
        plain = store.log.max_offset
        store = await rig.open(**LEDGER)
        divided = plain - plain % LOG_FILE + LOG_FILE
        assert store.segments.entries_from == divided
        await fill(store, 30, count)
        for queue_id in (0, 1):
            assert await bodies(store, "T", queue_id) == [body_of(i) for i in range(queue_id, count + 30, 2)]
        entries = await all_entries(ledger_of(store))
        assert (entries[0].index, entries[0].pos, len(entries)) == (0, divided, 30)
        if crashed:
            await rig.kill(store)
        else:
            await store.close()
            assert clean(rig.path).records == count + 30
        before = tree(rig.path / "commitlog")
        store = await rig.open(**LEDGER)
        await fill(store, 10, count + 30)
        assert (await all_entries(ledger_of(store)))[:30] == entries
        assert ledger_of(store).end_index == 39
        await store.close()
        assert tree(rig.path / "commitlog") == before, "the plain log is only read"
        assert clean(rig.path).records == count + 40
        with pytest.raises(StoreError, match="enableDLegerCommitLog is not set"):
            await rig.open()
        with pytest.raises(StoreError, match="dLegerSelfId=n0: the messages"):
            await rig.open(ledger=True, ledger_self_id="n1")


async def test_of_a_log_that_was_plain_the_plain_part_expires_first(tmp_path: Path) -> None:
    async with rig_at(tmp_path / "store", keep_hours=1, delete_pause_ms=0) as rig:
        store = await rig.open()
        await fill(store, 60)
        await store.close()
        store = await rig.open(**LEDGER)
        await fill(store, 60, 60)
        assert len(data_files(rig.path)) > 3
        for directory in ("commitlog", DATA):
            for name in os.listdir(rig.path / directory):
                os.utime(rig.path / directory / name, (0, 0))
        rig.clock.step_wall(2 * 3_600_000)
        store.expiry.order()
        await store.expiry.check()
        assert os.listdir(rig.path / "commitlog") == []
        assert ledger_of(store).begin_index == 0, "entries stay while plain files are there"
        await store.expiry.check()
        assert ledger_of(store).begin_index > 0
        await store.close()
        clean(rig.path)
        store = await rig.open(**LEDGER)
        await fill(store, 1, 120)
        await store.close()


# --- entries from a leader -----------------------------------------------------------------------------


async def copied(entries: list[LedgerEntry], store: MessageStore, chance: random.Random) -> None:
    ledger = ledger_of(store)
    at = 0
    while at < len(entries):
        upto = at + chance.randrange(1, 9)
        if at == 0 and ledger.end_index < 0:
            await ledger.truncate(entries[0])
            upto = 1
        else:
            ledger.append_follower(entries[at:upto])
        at = upto


@pytest.mark.parametrize("seed", range(3))
async def test_a_follower_has_the_same_bytes(tmp_path: Path, seed: int) -> None:
    async with rig_at(tmp_path / "leader", **LEDGER) as leader, rig_at(tmp_path / "other", **LEDGER) as other:
        first = await leader.open()
        await fill(first, 70)
        entries = await all_entries(ledger_of(first))
        second = await follower(other)
        await copied(entries, second, random.Random(seed))
        assert ledger_of(second).committed_index == -1
        assert await bodies(second) == [], "nothing is committed"
        ledger_of(second).commit(41)
        assert await bodies(second) == [body_of(i) for i in range(0, 42, 2)]
        with pytest.raises(OutOfLedger, match="cannot commit entry"):
            ledger_of(second).commit(70)
        await other.kill(second)
        second = await follower(other)
        assert ledger_of(second).end_index == 69
        assert 0 <= len(await bodies(second)) <= 21, "what is not known to be committed is not seen"
        ledger_of(second).commit(69)
        await holds(second, 70)
        for store in (first, second):
            await store.close()
        for start in data_files(tmp_path / "leader"):
            name = f"{DATA}/{start:020d}"
            assert (tmp_path / "leader" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
        clean(tmp_path / "other")


async def follower(rig: Rig) -> MessageStore:
    store = MessageStore(rig.options, files=rig.disk, clock=rig.clock, boot=rig.boot, alone=False)
    rig.stores.append(store)
    store.state.set(Obstacle.FOLLOWER, "another member leads")
    await store.open()
    return store


async def test_what_does_not_continue_the_log_is_refused(tmp_path: Path) -> None:
    async with rig_at(tmp_path / "leader", **LEDGER) as leader, rig_at(tmp_path / "other", **LEDGER) as other:
        first = await leader.open()
        await fill(first, 20)
        entries = await all_entries(ledger_of(first))
        second = await follower(other)
        ledger = ledger_of(second)
        with pytest.raises(OutOfLedger, match="does not continue the log"):
            ledger.append_follower(entries[1:2])
        ledger.append_follower(entries[:5])
        five = entries[5]
        for wrong in (
            entries[6],
            entries[4],
            LedgerEntry(5, 0, five.pos + 8, five.body),
            LedgerEntry(5, -1, five.pos, five.body),
            LedgerEntry(5, 0, five.pos, b""),
            LedgerEntry(5, 0, five.pos, b"no record at all"),
            LedgerEntry(5, 0, five.pos, five.body + b"x"),
        ):
            with pytest.raises(OutOfLedger):
                ledger.append_follower([wrong])
            assert ledger.end_index == 4
        ledger.append_follower(entries[5:])
        assert await all_entries(ledger) == entries
        await second.close()
        clean(tmp_path / "other")


async def test_truncated_as_its_leader_says(tmp_path: Path) -> None:
    """Two members with a common beginning: one is brought in step with the other."""
    async with rig_at(tmp_path / "leader", **LEDGER) as leader, rig_at(tmp_path / "other", **LEDGER) as other:
        first = await leader.open()
        await fill(first, 30)
        common = await all_entries(ledger_of(first))
        second = await follower(other)
        await copied(common, second, random.Random(1))
        ledger = ledger_of(second)
        ledger.commit(19)
        ledger_of(first).lead(4)
        await fill(first, 30, 100)
        entries = await all_entries(ledger_of(first))
        # An entry of its own in place of one that the leader has otherwise.
        await ledger.truncate(entries[24])
        assert (ledger.end_index, ledger.end_term) == (24, 0)
        ledger.lead(2)
        second.log.append_own(second.log.cursor("T", 0), b"of a leader nobody followed", 1)  # type: ignore[attr-defined]
        ledger.follow()
        assert (ledger.end_index, ledger.end_term) == (25, 2)
        with pytest.raises(OutOfLedger):
            ledger.append_follower(entries[25:26])
        await ledger.truncate(entries[25])
        assert (ledger.end_index, ledger.end_term) == (25, 0)
        ledger.append_follower(entries[26:])
        with pytest.raises(OutOfLedger, match="are committed"):
            await ledger.truncate(entries[10])
        ledger.commit(59)
        assert await all_entries(ledger) == entries
        assert await bodies(second) == await bodies(first)
        await other.kill(second)
        second = await follower(other)
        assert await all_entries(ledger_of(second)) == entries
        await second.close()
        clean(tmp_path / "other")


async def test_what_is_on_the_disk_is_safe_after_a_cut(tmp_path: Path) -> None:
    async with rig_at(tmp_path / "leader", **LEDGER) as leader:
        first = await leader.open()
        await fill(first, 30)
        entries = await all_entries(ledger_of(first))
    async with rig_at(tmp_path / "other", flush_mode=SYNC, **LEDGER) as other:
        second = await follower(other)
        ledger = ledger_of(second)
        heard: list[int] = []
        ledger.on_safe.append(lambda: heard.append(ledger.safe_index))
        await ledger.truncate(entries[0])
        ledger.append_follower(entries[1:20])
        assert ledger.safe_index == 0
        await ledger.truncate(entries[9])
        assert (ledger.safe_index, heard[-1]) == (9, 9)
        ledger.append_follower(entries[10:])
        await second.flusher.flush_all()
        assert (ledger.safe_index, heard[-1]) == (29, 29)
        ledger.commit(29)
        other_pos = LedgerEntry(20, 5, entries[21].pos, entries[21].body)
        with pytest.raises(OutOfLedger, match="are committed"):
            await ledger.truncate(other_pos)
        assert await all_entries(ledger) == entries
        await second.close()


async def test_barriers_of_leaders_that_follow_each_other(tmp_path: Path) -> None:
    """Each has its own number in the topic, though none of them was dispatched before the next came."""
    async with rig_at(tmp_path / "one", **LEDGER) as rig:
        store = await follower(rig)
        ledger = ledger_of(store)
        for term in (3, 4):
            ledger.lead(term)
            ledger.append_barrier()
            ledger.follow()
        await rig.kill(store)
        store = await follower(rig)
        ledger = ledger_of(store)
        assert (ledger.end_index, ledger.end_term, ledger.committed_index) == (1, 4, -1)
        assert store.queues.max_offset(SELF_TEST_TOPIC, 0) == 0
        ledger.lead(7)
        ledger.append_barrier()
        ledger.commit(2)
        assert await bodies(store, SELF_TEST_TOPIC) == [BARRIER_BODY] * 3
        await store.close()
        clean(rig.path)


async def test_begun_anew_behind_what_its_leader_has_deleted(tmp_path: Path) -> None:
    async with rig_at(tmp_path / "leader", **LEDGER) as leader, rig_at(tmp_path / "other", **LEDGER) as other:
        first = await leader.open()
        await fill(first, 80)
        entries = await all_entries(ledger_of(first))
        begin = next(entry.index for entry in entries if entry.pos >= 2 * LOG_FILE)
        second = await follower(other)
        ledger = ledger_of(second)
        await copied(entries[:5], second, random.Random(1))
        await ledger.truncate(entries[begin])
        assert (ledger.begin_index, ledger.end_index, ledger.begin_pos) == (begin, begin, 2 * LOG_FILE)
        ledger.append_follower(entries[begin + 1 :])
        ledger.commit(79)
        assert await all_entries(ledger) == entries[begin:]
        await other.kill(second)
        second = await follower(other)
        assert await all_entries(ledger_of(second)) == entries[begin:]
        await second.close()
        clean(tmp_path / "other")


# --- tools ------------------------------------------------------------------------------------------------


async def test_tools_know_it_or_say_that_they_do_not(rig: Rig) -> None:
    store = await rig.open()
    await fill(store, 30)
    await store.close()
    layout = layout_of(rig.path)
    data, index = rig.path / DATA / f"{0:020d}", rig.path / INDEX / f"{24 * UNIT_BYTES:020d}"
    shown = list(rows(str(data)))
    assert [row["entry"] for row in shown[:3]] == [0, 1, 2]
    assert [row["offset"] - row["position"] for row in shown[:-1]] == [ENTRY_HEAD_BYTES] * (len(shown) - 1)
    assert shown[-1]["record"] == "blank"
    assert next(rows(str(data), start=shown[2]["position"]))["properties"]["KEYS"] == "k2"
    assert [row["entry"] for row in rows(str(index))] == [24, 25, 26, 27, 28, 29]
    (note,) = rows(str(rig.path / "dledger-n0/checkpoint"))
    assert note["value"] == "committedIndex=29\nendIndex=29\n"
    assert summarize(layout)["log"]["toAtLeast"] == store.log.max_offset
    for plan in (plan_skip, plan_cut):
        with pytest.raises(NotForEntries, match="does not support DLedger logs"):
            plan(layout, 100)
    with pytest.raises(NotForEntries, match="store resync does not support DLedger logs"):
        OwnLog(layout)
    with pytest.raises(NotForEntries, match="the audit does not support DLedger logs"):
        plan_stores([rig.path])
    (rig.path / "commitlog").mkdir()  # as of one that began with a plain log, of which half would be read
    with pytest.raises(OptionError, match="its messages are in a DLedger log"):
        find_store("broker-a", str(rig.path))
    (rig.path / "commitlog").rmdir()
    shutil.rmtree(rig.path / "consumequeue")
    made = rebuild(layout)
    assert (made.records, made.queues) == (30, 2)
    clean(rig.path)
    store = await rig.open()
    await holds(store, 30)
    await store.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.OPEN])
async def test_an_index_that_cannot_be_written_refuses_sends_until_it_can(
    rig: Rig, caplog: pytest.LogCaptureFixture, operation: Operation, number: int
) -> None:
    """Nor can it be cut back meanwhile where it cannot be opened."""
    store = await rig.open()
    store._open_files.limit = 1  # the index is opened again for every write
    await fill(store, 5)
    rig.disk.fail(number, operation, path_contains="/index/0")
    with pytest.raises(StoreError, match="index"):
        await fill(store, 1, 5)
    obstacle = Obstacle.NO_DESCRIPTOR if number == errno.EMFILE else Obstacle.BEHIND
    assert list(store.state.obstacles) == [obstacle]
    for _ in range(3):
        await rig.clock.advance(1.1)
        with pytest.raises(StoreError):
            await fill(store, 1, 5)
    # One for each work: a flush needs the file as well.
    assert 1 <= caplog.text.count("store_not_writable") <= (2 if operation is Operation.OPEN else 1)
    rig.disk.mend()
    await rig.clock.advance(1.1)
    await until(lambda: store.state.writable)
    await fill(store, 5, 5)
    assert not store.state.fenced
    assert not store.failing.is_failing(Kind.LEDGER_INDEX, "append")
    await holds(store, 10)
