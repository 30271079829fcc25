"""The file of the term and the vote: Java's is read, and no promise is forgotten, wherever it is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.replication.dledger.term_file import Promise, TermFile, TermFileUnusable, write_promise
from kerolox.store.disk.files import File, Files, PathLike
from kerolox.store.errors import StoreError
from kerolox.testing.faults import FaultyFiles


def test_it_is_written_and_read_as_by_apache(tmp_path: Path) -> None:
    file = TermFile(tmp_path, Files())
    assert file.load() == Promise(0, None)
    file.save(Promise(0, "n0"))
    assert (tmp_path / "currterm").read_bytes() == b"voteLeader=n0\ncurrTerm=0\n"
    assert file.load() == Promise(0, "n0")
    file.save(Promise(7, None))
    assert (tmp_path / "currterm").read_bytes() == b"voteLeader=\ncurrTerm=7\n"
    assert file.load() == Promise(7, None)
    (tmp_path / "currterm").write_bytes(b"#Tue Nov 18 10:00:00 UTC 2025\ncurrTerm=3\nvoteLeader=n2\n")
    assert file.load() == Promise(3, "n2")


@pytest.mark.parametrize(
    ("files", "promise"),
    [
        # Apache's members delete the file before they rename the new one.
        ({".bak": (3, "n1"), ".tmp": (3, "n2")}, (3, "n2")),
        ({".bak": (3, "n1"), ".tmp": (4, None)}, (4, None)),
        ({".bak": (3, "n1")}, (3, "n1")),
        ({".bak": (3, "n1"), ".tmp": None}, (3, "n1")),
        # The file itself counts, whatever lies beside it.
        ({"": (3, "n1"), ".tmp": (4, None), ".bak": (2, "n0")}, (3, "n1")),
    ],
)
def test_what_a_killed_apache_member_left_is_read(
    tmp_path: Path, files: dict[str, tuple[int, str | None] | None], promise: tuple[int, str | None]
) -> None:
    for end, said in files.items():
        text = b"voteLead" if said is None else write_promise(Promise(*said))
        (tmp_path / f"currterm{end}").write_bytes(text)
    assert TermFile(tmp_path, Files()).load() == Promise(*promise)


@pytest.mark.parametrize("text", [b"", b"voteLeader=n0\n", b"currTerm=x\nvoteLeader=\n", b"currTerm=12"])
def test_a_file_that_says_nothing_is_not_taken_for_a_new_member(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "currterm").write_bytes(text)
    with pytest.raises(TermFileUnusable, match="does not say for whom"):
        TermFile(tmp_path, Files()).load()


class _Killed(StoreError):
    pass


class KilledAtStep(FaultyFiles):
    """Dies at the nth thing it is asked to do."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _Killed("killed")

    def create(
        self, path: PathLike, size: int = 0, *, write_zeros: bool = False, sparse: bool = False
    ) -> File:
        self.count()
        file = super().create(path, size, write_zeros=write_zeros, sparse=sparse)
        self.count()
        return file

    def rename(self, source: PathLike, target: PathLike) -> None:
        self.count()
        super().rename(source, target)
        self.count()

    def sync_dir(self, path: PathLike) -> None:
        self.count()
        super().sync_dir(path)

    def remove(self, path: PathLike) -> bool:
        self.count()
        return super().remove(path)


@pytest.mark.parametrize("power", [False, True])
def test_killed_at_any_step_it_keeps_what_was_answered(tmp_path: Path, power: bool) -> None:
    """Saved means kept, also when the power goes; not saved means the old one or the new one."""
    old, new = Promise(3, "n1"), Promise(4, "n2")
    outcomes = set()
    for step in range(20):
        folder = tmp_path / str(step)
        folder.mkdir()
        TermFile(folder, Files()).save(old)
        files = KilledAtStep(step)
        try:
            TermFile(folder, files).save(new)
            saved = True
        except _Killed:
            saved = False
        if power:
            files.left = 1000
            files.power_loss(step, names=True)
        found = TermFile(folder, Files()).load()
        assert found in ((new,) if saved else (old, new)), f"step {step}"
        outcomes.add((saved, found))
    assert (True, new) in outcomes
    assert (False, old) in outcomes
