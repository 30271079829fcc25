"""Epochs of a log: kept on disk, cut with it, and compared with a leader's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.epoch_file import EPOCH_FILE, encode_epochs
from kerolox.protocol.ha_epochs import EPOCHS_MAX, Epoch
from kerolox.replication.epoch_history import EpochHistory, common_end, epoch_at, epoch_end
from kerolox.store.disk.epoch_file import EpochFile, EpochsFall
from kerolox.store.disk.files import Files
from kerolox.store.errors import StoreError

from .kit import store_at


def epochs(*pairs: tuple[int, int]) -> tuple[Epoch, ...]:
    return tuple(Epoch(*pair) for pair in pairs)


def file_at(path: Path) -> EpochFile:
    file = EpochFile(Files(), path / EPOCH_FILE)
    file.load()
    return file


def test_what_begins_is_there_at_the_next_start(tmp_path: Path) -> None:
    file = file_at(tmp_path)
    assert file.entries == ()
    file.begin(1, 0, 0)
    file.begin(3, 4567, 0)
    assert (tmp_path / EPOCH_FILE).read_bytes() == b"2\n1726488240\n1-0\n3-4567\n"  # as RocketMQ writes it
    assert file_at(tmp_path).entries == epochs((1, 0), (3, 4567))


def test_an_epoch_without_a_byte_leaves_no_trace(tmp_path: Path) -> None:
    file = file_at(tmp_path)
    file.begin(1, 0, 0)
    file.begin(2, 0, 0)
    assert file.entries == epochs((2, 0))
    file.begin(3, 100, 0)
    file.begin(7, 100, 0)
    file.begin(5, 100, 0)  # of a controller that counts otherwise: nothing was written in epoch 7
    assert file.entries == epochs((2, 0), (5, 100))


def test_an_epoch_older_than_the_log_is_refused(tmp_path: Path) -> None:
    file = file_at(tmp_path)
    file.begin(7, 0, 0)
    with pytest.raises(EpochsFall, match=r"cannot begin epoch 6 at 50: .* epoch 7, from 0 on"):
        file.begin(6, 50, 0)
    file.begin(7, 50, 0)  # it goes on in the one it led
    assert file.entries == file_at(tmp_path).entries == epochs((7, 0))


def test_cut_and_age(tmp_path: Path) -> None:
    file = file_at(tmp_path)
    for epoch in epochs((1, 0), (2, 100), (3, 200), (4, 300)):
        file.begin(*epoch, 0)
    file.cut(300)
    assert file.entries == epochs((1, 0), (2, 100), (3, 200))
    file.fit(200)
    assert file.entries == epochs((1, 0), (2, 100), (3, 200)), "one that has just begun"
    file.fit(199)
    assert file.entries == epochs((1, 0), (2, 100))
    file.drop_before(100)
    assert file.entries == epochs((1, 0), (2, 100)), "a follower may be just there"
    file.drop_before(101)
    assert file.entries == file_at(tmp_path).entries == epochs((2, 100))
    file.cut(0)
    assert file.entries == file_at(tmp_path).entries == ()


def test_the_copy_beside_it(tmp_path: Path) -> None:
    """RocketMQ leaves one. It counts when the file does not read, and when it is empty."""
    main, copy = tmp_path / EPOCH_FILE, tmp_path / (EPOCH_FILE + ".bak")
    copy.write_bytes(encode_epochs(epochs((1, 0))))
    assert file_at(tmp_path).entries == epochs((1, 0))
    for damaged in (b"", b"1\n17\n1-0\n", b"2\n0\n1-0\n", encode_epochs(())):
        main.write_bytes(damaged)
        assert file_at(tmp_path).entries == epochs((1, 0))
    file = file_at(tmp_path)
    file.cut(0)
    assert not copy.exists(), "it would come back"
    assert file_at(tmp_path).entries == ()
    main.write_bytes(b"nonsense")
    with pytest.raises(StoreError, match=r"cannot read the epochs .*nonsense.*move it away and restart"):
        file_at(tmp_path)


def test_the_number_of_epochs_has_a_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = file_at(tmp_path)
    file.take(epochs(*((number, number * 10) for number in range(1, EPOCHS_MAX + 1))))
    file.begin(EPOCHS_MAX + 1, 1 << 40, 35)  # the log begins at 35: the first ones are no longer needed
    assert file.entries[0] == Epoch(3, 30)
    assert not caplog.records
    file.take(epochs(*((number, number * 10) for number in range(1, EPOCHS_MAX + 1))))
    file.begin(EPOCHS_MAX + 1, 1 << 40, 0)
    assert file.entries[0] == Epoch(2, 20)
    assert len(file.entries) == EPOCHS_MAX
    assert "epochs_forgotten count=1 before=20" in caplog.text


async def test_by_a_store(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        history = EpochHistory(store)
        await history.load()
        assert (history.entries, history.last) == ((), 0)
        await history.begin(4, 0)
        await history.heard(Epoch(4, 0))
        await history.heard(Epoch(6, 10))
        assert history.last == 6
        assert [(one.epoch, one.start_offset, one.end_offset) for one in history.ranges()] == [
            (4, 0, 10), (6, 10, (1 << 63) - 1),
        ]  # fmt: skip
        await history.cut(10)
        await history.drop_before(0)
        assert history.entries == epochs((4, 0))


def test_the_epoch_of_an_offset() -> None:
    known = epochs((2, 100), (5, 200))
    assert [epoch_at(known, at).number for at in (0, 99, 100, 199, 200, 999)] == [2, 2, 2, 2, 5, 5]
    assert [epoch_end(known, at) for at in (0, 100, 199)] == [200, 200, 200]
    assert epoch_end(known, 200) == (1 << 63) - 1


# --- the last place two logs agree on --------------------------------------------------------------------


class Broker:
    """A log whose bytes know who wrote them."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []  # epoch, and a number no other byte has
        self.epochs: list[Epoch] = []

    def begin(self, number: int) -> None:
        self.epochs = [epoch for epoch in self.epochs if epoch.start < len(self.log)]
        self.epochs.append(Epoch(number, len(self.log)))

    def follow(self, leader: Broker, up_to: int) -> None:
        """Cut, and copy some of what is lacking."""
        same = common_end(self.epochs, len(self.log), leader.epochs, len(leader.log))
        if same is None:
            same = 0
        assert self.log[:same] == leader.log[:same]
        del self.log[same:]
        self.epochs = [epoch for epoch in self.epochs if epoch.start < same]
        self.log += leader.log[same : same + up_to]
        known = {epoch.number for epoch in self.epochs}
        self.epochs += [e for e in leader.epochs if e.number not in known and e.start < len(self.log)]


def test_logs_without_a_common_epoch_are_the_same_where_both_begin() -> None:
    """A leader wrote what nobody copied, and another one was elected with an empty log."""
    assert common_end(epochs((1, 0)), 788, epochs((4, 0)), 1505) == 0
    assert common_end(epochs((2, 100)), 788, epochs((4, 100)), 1505) == 100
    assert common_end(epochs((2, 100)), 788, epochs((4, 0)), 1505) is None
    assert common_end(epochs(), 788, epochs((4, 0)), 1505) is None


STEP = st.tuples(st.sampled_from(["lead", "write", "follow"]), st.integers(0, 3), st.integers(0, 4))


@given(st.lists(STEP, max_size=60))
def test_common_end_is_where_the_logs_part(steps: list[tuple[str, int, int]]) -> None:
    """Any broker leads at any time, with whatever it has, and anyone copies any part of any other's log."""
    brokers = [Broker() for _ in range(4)]
    number = unique = 0
    for what, who, count in steps:
        broker = brokers[who]
        if what == "lead":
            number += 1
            broker.begin(number)
        elif what == "write" and broker.epochs and broker.epochs[-1].number == number:
            for _ in range(count):
                unique += 1
                broker.log.append((number, unique))
        elif what == "follow" and brokers[count % 4] is not broker:
            broker.follow(brokers[count % 4], count)
        for one in brokers:
            assert [e.number for e in one.epochs] == sorted({e.number for e in one.epochs})
            for other in brokers:
                same = 0
                while same < min(len(one.log), len(other.log)) and one.log[same] == other.log[same]:
                    same += 1
                found = common_end(one.epochs, len(one.log), other.epochs, len(other.log))
                assert (found or 0) == same
