from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kerolox.protocol.java import java_hash
from kerolox.store.disk.files import Files
from kerolox.store.errors import DiskFull, StoreError, WrongFileSize
from kerolox.store.index.index_file import HEADER, file_size
from kerolox.store.index.key_index import KeyHasher, KeyIndex, file_name, hash_key
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

T0 = 1_700_000_000_000
SLOTS, ENTRIES = 16, 40


def open_index(
    path: Path | str,
    files: Files | None = None,
    *,
    slots: int = SLOTS,
    entries: int = ENTRIES,
    after_crash: bool = False,
    checkpoint_ms: int = 0,
) -> KeyIndex:
    index = KeyIndex(files or Files(), path, slots=slots, entries=entries, clock=ManualClock())
    index.load(after_crash=after_crash, checkpoint_ms=checkpoint_ms)
    return index


def put(index: KeyIndex, key: str, physical: int, time_ms: int = T0) -> None:
    index.put_many([(hash_key("T", key), physical, time_ms)])


def round_of(index: KeyIndex) -> None:
    index.sync(index.write())


def reference_file(items: list[tuple[str, int, int]], slots: int, entries: int) -> bytes:
    """The file as the format says it is, made entry by entry and by the book."""
    data = bytearray(file_size(slots, entries))
    used = 0
    for number, (key, physical, time_ms) in enumerate(items, 1):
        code = abs(java_hash(key))
        at = 40 + 4 * (code % slots)
        (previous,) = struct.unpack_from(">i", data, at)
        used += previous == 0
        struct.pack_into(">i", data, at, number)
        struct.pack_into(
            ">iqii",
            data,
            40 + 4 * slots + 20 * number,
            code,
            physical,
            (time_ms - items[0][2]) // 1000,
            previous,
        )
    struct.pack_into(
        ">qqqqii", data, 0, items[0][2], items[-1][2], items[0][1], items[-1][1], used, len(items) + 1
    )
    return bytes(data)


ITEMS = [(f"T#key-{n % 5}", 100 + n * 50, T0 + n * 1700) for n in range(12)]


def test_the_known_hash_and_slot() -> None:
    assert hash_key("TopicTest", "k1") == 2746024
    assert 2746024 % 5_000_000 * 4 == 10984096
    assert 40 + 2746024 % 5_000_000 * 4 == 10984136
    assert file_size(5_000_000, 20_000_000) == 420_000_040


def test_the_smallest_hash_has_no_absolute_value() -> None:
    text = "polygenelubricants"  # its hash is the smallest integer
    assert java_hash(text) == -(2**31)
    hasher = KeyHasher()
    assert hasher.key(b"T", b"k") == hash_key("T", "k")
    hasher._topics[b"p"] = 0
    assert hasher.key(b"p", text.encode()) == 0
    # A unique key whose hash is the smallest integer, by way of a remembered head.
    hasher._heads[b"T" + b"0" * 28] = pow(923521, -1, 2**32) * (2**31 - 48 * (29791 + 961 + 31 + 1)) % 2**32
    assert hasher.unique_key(b"T", b"0" * 32) == 0


@given(st.text(min_size=1, max_size=10), st.lists(st.text(max_size=40), max_size=4), st.booleans())
@settings(max_examples=60)
def test_remembered_hashes_are_the_plain_ones(topic: str, keys: list[str], alike: bool) -> None:
    hasher = KeyHasher()
    for n in range(3):
        unique = f"{'7F0000010000000000000000' if alike else 'é'}{n:08X}"
        tokens = [key for key in " ".join(keys).split(" ") if key]
        got = hasher.keys(topic.encode(), unique.encode(), " ".join(keys).encode())
        assert got == [hash_key(topic, unique)] + [hash_key(topic, token) for token in tokens]
    assert hasher.keys(topic.encode(), None, None) == []


def test_a_file_is_written_byte_for_byte_as_specified(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    for key, physical, time_ms in ITEMS:
        put(index, key[2:], physical, time_ms)
    index.close()
    (name,) = os.listdir(tmp_path)
    assert len(name) == 17
    assert (tmp_path / name).read_bytes() == reference_file(ITEMS, SLOTS, ENTRIES)


def test_a_file_of_rocketmq_is_read_and_continued(tmp_path: Path) -> None:
    (tmp_path / "20240101000000000").write_bytes(reference_file(ITEMS, SLOTS, ENTRIES))
    index = open_index(tmp_path)
    assert (index.end_physical, index.end_ms) == (650, T0 + 11 * 1700)
    assert index.query("T", "key-1", 64) == [650, 400, 150]
    put(index, "key-1", 700, T0 + 30_000)
    assert index.query("T", "key-1", 64) == [700, 650, 400, 150]
    index.close()
    content = (tmp_path / "20240101000000000").read_bytes()
    assert content == reference_file([*ITEMS, ("T#key-1", 700, T0 + 30_000)], SLOTS, ENTRIES)


def test_nothing_is_created_before_the_first_key(tmp_path: Path) -> None:
    index = open_index(tmp_path / "index")
    index.put_many([])
    assert index.query("T", "k", 9) == []
    index.close()
    assert (len(index), index.end_physical, (tmp_path / "index").exists()) == (0, -1, False)


def test_the_message_at_the_very_beginning_of_the_log_is_entered(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    put(index, "a", 0)
    assert index.query("T", "a", 9) == [0]
    index.close()
    assert open_index(tmp_path).end_physical == 0


def test_what_is_there_is_not_entered_again(tmp_path: Path) -> None:
    index = open_index(tmp_path)
    message = [(hash_key("T", "a"), 500, T0), (hash_key("T", "b"), 500, T0)]
    index.put_many(message)
    index.put_many(message)
    put(index, "a", 100)
    index.put_many([*message, (hash_key("T", "a"), 600, T0)])
    assert index.query("T", "a", 9) == [600, 500]
    assert index.query("T", "b", 9) == [500]
    index.close()
    again = open_index(tmp_path)
    again.put_many(message)
    assert again._all[-1].count == 4


def test_files_roll_when_full_and_keep_messages_whole(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=6)  # five entries a file
    for n in range(7):
        index.put_many([(hash_key("T", f"{key}{n}"), n * 10, T0 + n * 1000) for key in "ab"])
    assert [file.count - 1 for file in index._all] == [4, 4, 4, 2]
    assert index.full_files_end_ms == 0
    round_of(index)
    assert index.full_files_end_ms == T0 + 5000
    for n in range(7):
        assert index.query("T", f"a{n}", 9) == index.query("T", f"b{n}", 9) == [n * 10]
    index.put_many([(hash_key("T", "all"), 100 + n, T0 + 60_000) for n in range(23)])
    assert index.query("T", "all", 64) == list(range(122, 99, -1))
    assert index.query("T", "all", 3) == [122, 121, 120]
    index.put_many([(n, 500, T0) for n in range(11)])  # more keys than a file has room for
    assert [index.query_hash(n, 9) for n in range(11)] == [[500]] * 11
    index.close()
    names = sorted(os.listdir(tmp_path))
    assert len(set(names)) == len(index) == len(names)
    again = open_index(tmp_path, entries=6)
    assert again.query("T", "all", 64) == list(range(122, 99, -1))
    assert again.query("T", "a3", 64) == [30]


def test_a_file_filled_in_an_earlier_round_gets_its_slots_written(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=6)
    for n in range(5):
        put(index, f"k{n}", n)
    round_of(index)
    put(index, "k5", 5)
    round_of(index)
    first = index._all[0]
    assert first._table is None
    assert [index.query("T", f"k{n}", 9) for n in range(6)] == [[n] for n in range(6)]


def test_query_by_time(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=6)
    for n in range(20):
        put(index, "k", n, T0 + n * 10_000)
    assert index.query("T", "k", 64, T0 + 50_000, T0 + 80_000) == [8, 7, 6, 5]
    assert index.query("T", "k", 64, T0 + 500_000) == []
    assert index.query("T", "k", 64, 0, T0 - 1) == []
    assert index.query("T", "k", 2, 0, T0 + 80_000) == [8, 7]
    assert index.query("T", "other", 64) == []


def test_a_damaged_chain_ends_the_walk(tmp_path: Path) -> None:
    data = bytearray(reference_file(ITEMS, 1, ENTRIES))
    struct.pack_into(">i", data, 40 + 4 + 20 * 5 + 16, 9)  # entry 5 says 9 came before it
    (tmp_path / "20240101000000000").write_bytes(data)
    index = open_index(tmp_path, slots=1)
    assert index.query("T", "key-1", 64) == [650, 400]
    struct.pack_into(">i", data, 40, 1000)  # and a slot that points nowhere
    (tmp_path / "20240101000000000").write_bytes(data)
    assert open_index(tmp_path, slots=1).query("T", "key-1", 64) == []


def test_files_of_other_sizes_are_refused_and_other_counts_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "20240101000000000"
    path.write_bytes(reference_file(ITEMS, SLOTS, ENTRIES + 1))
    with pytest.raises(WrongFileSize, match="expected"):
        open_index(tmp_path)
    data = bytearray(reference_file(ITEMS, SLOTS, ENTRIES))
    struct.pack_into(">i", data, 36, ENTRIES + 1)
    path.write_bytes(data)
    assert f"more than its maximum of {ENTRIES - 1} entries" in open_index(tmp_path).damage


def test_strays_are_passed_over_and_empty_files_removed(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    (tmp_path / "20240101000000000").touch()
    index = open_index(tmp_path)
    assert len(index) == 0
    assert os.listdir(tmp_path) == ["notes"]


def test_names_grow_even_when_the_clock_is_set_back(tmp_path: Path) -> None:
    (tmp_path / "29991231235959999").write_bytes(reference_file(ITEMS, SLOTS, 13))
    index = open_index(tmp_path, entries=13)
    put(index, "k", 9999)
    index.close()
    assert sorted(os.listdir(tmp_path)) == ["29991231235959999", "29991231235960000"]
    assert open_index(tmp_path, entries=13).end_physical == 9999
    assert file_name(T0 + 7).endswith("20007")


@pytest.mark.parametrize("physical", [0, 100, 149, 150, 151, 500, 651])
def test_truncation_is_as_if_it_had_never_been_entered(tmp_path: Path, physical: int) -> None:
    index = open_index(tmp_path)
    for key, place, time_ms in ITEMS:
        put(index, key[2:], place, time_ms)
    index.truncate_to(physical)
    kept = [item for item in ITEMS if item[1] < physical]
    index.close()
    assert [len(index), len(os.listdir(tmp_path))] == ([1, 1] if kept else [0, 0])
    if kept:
        content = bytearray((tmp_path / os.listdir(tmp_path)[0]).read_bytes())
        expected = bytearray(reference_file(kept, SLOTS, ENTRIES))
        if len(kept) < len(ITEMS):
            content[8:16] = expected[8:16]  # the time of the last entry is known to the second only
            used = 40 + 4 * SLOTS + 20 * (len(kept) + 1)  # what lies beyond does not count
            assert content[:used] == expected[:used]
        else:
            assert content == expected


def test_truncation_goes_back_over_files(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=6)
    for n in range(20):
        put(index, "k", n, T0 + n * 1000)
    round_of(index)
    index.truncate_to(8)
    assert (index.end_physical, len(index)) == (7, 2)
    for n in range(8, 14):
        put(index, "k", n, T0 + n * 1000)
    assert index.query("T", "k", 64) == list(range(13, -1, -1))
    index.close()
    assert open_index(tmp_path, entries=6).query("T", "k", 64) == list(range(13, -1, -1))


def test_files_of_deleted_messages_go(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=6)
    for n in range(20):
        put(index, "k", n)
    round_of(index)
    assert index.delete_before(4) == 0
    assert index.delete_before(10) == 2
    assert index.query("T", "k", 64) == list(range(19, 9, -1))
    assert index.delete_before(1000) == 1
    assert len(os.listdir(tmp_path)) == len(index) == 1
    index.delete_all()
    assert os.listdir(tmp_path) == []
    put(index, "k", 0)
    assert index.query("T", "k", 64) == [0]


def test_a_full_disk_loses_no_entry(tmp_path: Path) -> None:
    disk = FaultyFiles()
    index = open_index(tmp_path, disk, entries=6)
    disk.read_only = True
    items = [(hash_key("T", "k"), n, T0) for n in range(12)]
    with pytest.raises(StoreError):
        index.put_many(items)
    disk.read_only = False
    index.put_many(items[:3])
    disk.read_only = True
    with pytest.raises(StoreError):
        index.put_many(items)
    with pytest.raises(StoreError):
        index.write()
    disk.read_only = False
    index.put_many(items)
    round_of(index)
    assert index.query("T", "k", 64) == list(range(11, -1, -1))


def test_a_failed_sync_is_done_again(tmp_path: Path) -> None:
    disk = FaultyFiles()
    index = open_index(tmp_path, disk)
    put(index, "k", 1)
    written = index.write()
    disk.fail_syncs(1)
    with pytest.raises(StoreError):
        index.sync(written)
    assert [file for file, _ in index.write()] == [file for file, _ in written]
    assert DiskFull.retriable


def test_after_a_crash_damage_ends_the_index(tmp_path: Path) -> None:
    index = open_index(tmp_path, entries=11)
    for n in range(25):
        index.put_many([(hash_key("T", f"{key}{n}"), n * 10, T0) for key in "ab"])
    index.close()
    path = index._all[2].path
    with open(path, "r+b") as file:
        file.seek(40 + 4 * SLOTS + 20 * 6)
        file.write(bytes(20))  # entry 6 of the third file never came to disk
    again = open_index(tmp_path, entries=11, after_crash=True, checkpoint_ms=T0 - 1)
    # Entry 5 may be half of its message, so it went as well.
    assert (again.end_physical, len(again), again._all[-1].count) == (110, 3, 5)
    assert again.query("T", "b11", 9) == [110]
    for n in range(25):
        again.put_many([(hash_key("T", f"{key}{n}"), n * 10, T0) for key in "ab"])
    again.close()
    healed = open_index(tmp_path, entries=11)
    assert [healed.query("T", f"{key}{n}", 9) for key in "ab" for n in range(25)] == [
        [n * 10] for _ in "ab" for n in range(25)
    ]


def test_a_senseless_header_after_a_crash_counts_as_empty(tmp_path: Path) -> None:
    data = bytearray(reference_file(ITEMS, SLOTS, ENTRIES))
    data[:40] = HEADER.pack(1, 2, 3, 4, 5, 2**31 - 1)
    (tmp_path / "20240101000000000").write_bytes(data)
    index = open_index(tmp_path, after_crash=True)
    assert (len(index), index.end_physical, os.listdir(tmp_path)) == (0, -1, [])


class Machine(RuleBasedStateMachine):
    """The index against a list of messages, through rounds, deaths and truncations.

    After power loss the keys of a beginning of the log are there, at least up to the last round, and
    entering everything again brings back the rest, once.
    """

    @initialize(slots=st.sampled_from([1, 7, 3000]), entries=st.sampled_from([4, 9, 600]))
    def begin(self, slots: int, entries: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, "index")
        self.sizes = {"slots": slots, "entries": entries}
        self.disk = FaultyFiles()
        self.log: list[tuple[int, int, tuple[int, ...]]] = []  # place, time, hashes
        self.safe = -1  # place of the last message that must survive
        self.deleted = 0
        self.index = open_index(self.path, self.disk, **self.sizes)

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            for file in self.index._all:
                self.index._open_files.close_idle(file.segment)
            self.directory.cleanup()

    def enter(self, messages: list[tuple[int, int, tuple[int, ...]]]) -> None:
        self.index.put_many([(code, place, time_ms) for place, time_ms, codes in messages for code in codes])

    @rule(messages=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=40))
    def put(self, messages: list[list[int]]) -> None:
        place, time_ms = (self.log[-1][0] + 10, self.log[-1][1]) if self.log else (0, T0)
        new = [
            (place + 10 * n, time_ms + 400 * n, tuple(dict.fromkeys(codes)))
            for n, codes in enumerate(messages)
        ]
        self.log += new
        self.enter(new)

    @rule()
    def round(self) -> None:
        round_of(self.index)
        # The header of the file being written is flushed with the next round.

    @rule()
    def flush(self) -> None:
        self.index.flush()
        self.safe = self.index.end_physical

    @rule()
    def again(self) -> None:
        self.enter(self.log[-10:])

    @rule(seed=st.none() | st.integers(0, 1000), names=st.booleans())
    def power_loss(self, seed: int | None, names: bool) -> None:
        checkpoint_ms = self.index.full_files_end_ms
        self.disk.power_loss(seed, names=names)
        self.come_back(checkpoint_ms)

    @rule()
    def kill(self) -> None:
        checkpoint_ms = self.index.full_files_end_ms
        self.disk.kill()
        self.come_back(checkpoint_ms)

    def come_back(self, checkpoint_ms: int) -> None:
        self.index = open_index(
            self.path, self.disk, after_crash=True, checkpoint_ms=checkpoint_ms, **self.sizes
        )
        assert self.index.end_physical >= self.safe or self.safe < self.deleted
        self.compare([message for message in self.log if message[0] <= self.index.end_physical])
        self.enter(self.log)
        self.index.flush()
        self.safe = self.index.end_physical

    @rule()
    def restart(self) -> None:
        self.index.close()
        self.index = open_index(self.path, self.disk, **self.sizes)
        self.safe = self.index.end_physical

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        if not self.log:
            return
        place = self.log[int((len(self.log) - 1) * share)][0]
        self.index.truncate_to(place)
        self.log = [message for message in self.log if message[0] < place]
        self.safe = min(self.safe, self.index.end_physical)

    @rule(share=st.floats(0, 1))
    def delete(self, share: float) -> None:
        if self.log:
            self.deleted = max(self.deleted, self.log[int((len(self.log) - 1) * share)][0])
            self.index.delete_before(self.deleted)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "index"):
            self.compare(self.log)

    def compare(self, messages: list[tuple[int, int, tuple[int, ...]]]) -> None:
        for code in (0, 1, 7, 30):
            got = [place for place in self.index.query_hash(code, 10_000) if place >= self.deleted]
            assert got == [
                place for place, _, codes in reversed(messages) if code in codes and place >= self.deleted
            ]


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_content_is_opened_or_refused(junk: bytes, after_crash: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        data = bytearray(reference_file(ITEMS, SLOTS, ENTRIES))
        data[36 : 36 + len(junk)] = junk
        Path(directory, "20240101000000000").write_bytes(data[: file_size(SLOTS, ENTRIES)])
        try:
            index = open_index(directory, after_crash=after_crash)
        except StoreError:
            return
        for code in range(SLOTS):
            index.query_hash(code, 64)
        put(index, "k", 10_000)
        assert index.query("T", "k", 1) == [10_000]
        index.close()


@pytest.mark.parametrize("torn", range(HEADER.size + 1))
def test_a_torn_header_loses_no_key(tmp_path: Path, torn: int) -> None:
    """Its fields may be of two rounds: what the log brings again is entered all the same."""

    def items(physical: int) -> list[tuple[int, int, int]]:
        return [(hash_key("T", f"{physical}-{number}"), physical, T0 + physical) for number in range(3)]

    index = open_index(tmp_path, entries=600)
    for physical in range(100, 170):
        index.put_many(items(physical))
    round_of(index)
    (path,) = tmp_path.iterdir()
    old = path.read_bytes()[: HEADER.size]
    for physical in range(170, 270):
        index.put_many(items(physical))
    round_of(index)
    data = path.read_bytes()
    path.write_bytes(data[:torn] + old[torn:] + data[HEADER.size :])
    again = open_index(tmp_path, entries=600, after_crash=True)
    for physical in range(100, 270):
        again.put_many(items(physical))
    for physical in range(100, 270):
        for number in range(3):
            assert physical in again.query("T", f"{physical}-{number}", 600)
