"""A store at an address is read as one on disk is, with few requests and little memory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import OptionError
from kerolox.pipeline.lake import store_files
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.pipeline.lake.storage import StorageError, StoredFile
from kerolox.pipeline.lake.store_files import AddressFiles, files_at
from kerolox.spark.store.files import LogFiles, find_run
from kerolox.store.errors import FileMissing
from kerolox.store.offline.layout import OnlyReading
from tests.rig.s3_server import SECRET, S3Server

NAMES = ("commitlog/00000000000000000000", "commitlog/00000000000000065536", "consumequeue/a/0/x", "abort")


class Counted(RemoteStore):
    """Files in memory, and the ranges that were asked for."""

    def __init__(self, content: dict[str, bytes]) -> None:
        super().__init__("s3://bucket/store")
        self.content = content
        self.asked: list[tuple[int, int]] = []

    def files(self, folder: str = "") -> list[StoredFile]:
        return [StoredFile(name, len(data)) for name, data in self.content.items() if name.startswith(folder)]

    def read_range(self, path: str, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path][start:end]


def test_listings_are_those_of_a_disk(s3: S3Server, tmp_path: Path) -> None:
    storage = s3.storage("brokers/a/store")
    for name in NAMES:
        storage.put(name, name.encode())
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    root, files = files_at(storage)
    disk = OnlyReading()
    assert files is not None
    assert root == files.absolute(f"{root}/") == storage.address
    for folder in ("", "/commitlog", "/consumequeue", "/consumequeue/a", "/consumequeue/a/0", "/nowhere"):
        there, here = f"{root}{folder}", f"{tmp_path}{folder}"
        assert files.list_dir(there) == disk.list_dir(here)
        assert files.is_dir(there) == disk.is_dir(here)
    for name in NAMES:
        there = f"{root}/{name}"
        assert files.read(there) == name.encode()
        assert (files.exists(there), files.is_dir(there), files.size(there)) == (True, False, len(name))
    assert not files.exists(f"{root}/abor")
    for missing in ("commitlog/1", "commitlog"):
        with pytest.raises(FileMissing):
            files.open(f"{root}/{missing}")
    copy = pickle.loads(pickle.dumps(files))
    assert copy.list_dir(root) == files.list_dir(root)


def test_a_folder_has_two_forms(tmp_path: Path) -> None:
    assert files_at(f"file://{tmp_path}") == files_at(tmp_path) == (str(tmp_path), None)
    with pytest.raises(OptionError, match="two slashes"):
        files_at(Path("s3://backup/store"))
    assert files_at("file:/data/store") == ("/data/store", None)
    with pytest.raises(OptionError, match="a bucket"):
        files_at("s3://")


@settings(max_examples=60, deadline=None)
@given(reads=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 900), st.booleans()), max_size=20))
def test_reads_are_those_of_the_file(reads: list[tuple[int, int, bool]]) -> None:
    data = bytes(number * 7 % 251 for number in range(4500))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FIRST_BYTES", 16), ("READ_BYTES_MAX", 256), ("KEPT_BYTES_MAX", 300)):
            patch.setattr(store_files, name, value)
        files = AddressFiles(Counted({"a": data, "b": data[::-1]}))
        files._listed[""] = {"a": len(data), "b": len(data)}
        for place, size, second in reads:
            file = files.open("s3://bucket/store/" + "ab"[second])
            wanted = (data[::-1] if second else data)[place : place + size]
            assert file.pread(size, place) == wanted
            view = memoryview(bytearray(size))
            assert bytes(view[: file.pread_into(view, place)]) == wanted


def test_many_small_reads_are_few_requests() -> None:
    name = "commitlog/00000000000000000000"
    storage = Counted({name: bytes(20 << 20)})
    files = AddressFiles(storage)
    file = files.open(f"s3://bucket/store/{name}")
    for place in range(0, file.size, 4096):
        assert len(file.pread(4096, place)) == 4096
    assert len(storage.asked) < 12
    assert sum(end - start for start, end in storage.asked) == file.size  # nothing twice
    assert max(end - start for start, end in storage.asked) <= store_files.READ_BYTES_MAX
    assert list(file.written_ranges(5, 9)) == [(5, 9)]
    kept = files._kept
    assert kept._bytes == sum(len(window.data) for window in kept._windows.values())
    assert kept._bytes <= 2 * store_files.READ_BYTES_MAX


def test_many_open_files_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "KEPT_BYTES_MAX", 1 << 20)
    names = [f"consumequeue/a/{number}/{0:020d}" for number in range(30)]
    files = AddressFiles(Counted(dict.fromkeys(names, bytes(1 << 18))))
    for name in names:
        files.open(f"s3://bucket/store/{name}").pread(20, 0)
    assert files._kept._bytes == sum(len(window.data) for window in files._kept._windows.values()) <= 1 << 20


def test_a_file_that_goes_missing_reads_as_nothing_and_what_is_refused_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "commitlog/00000000000000000000"
    storage = Counted({name: bytes(1000)})
    run = find_run(["s3://bucket/store/commitlog"], AddressFiles(storage))
    assert (run.start, run.end) == (0, 1000)
    del storage.content[name]
    with LogFiles(run) as log:
        assert (log.read(0, 10), log.read_into(memoryview(bytearray(10)), 0)) == (b"", 0)

    def forbidden(*_: object, **__: object) -> bytes:
        raise PermissionError(f"Forbidden for {SECRET}")

    store = RemoteStore("s3://bucket/store", {"secret": SECRET})
    monkeypatch.setattr(RemoteStore, "_fs", lambda self: type("Fs", (), {"cat_file": forbidden})())
    with pytest.raises(StorageError, match=r"could not be read: Forbidden for \*\*\*\. Keys come from"):
        store.read_range(name, 0, 10)
