"""Files at an address: the same behaviour on disk and on S3."""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from kerolox.cli.storage_options import read_storage_options
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.lake.delta_options import delta_options
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.pipeline.lake.storage import Storage, StorageError, open_storage
from tests.rig.s3_server import KEY, SECRET, S3Server


@pytest.fixture(params=["disk", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return LocalFolder(tmp_path / "a")
    server: S3Server = request.getfixturevalue("s3")
    return server.storage()


def paths(storage: Storage, folder: str = "") -> list[str]:
    return [file.path for file in storage.files(folder)]


def test_small_files(storage: Storage) -> None:
    assert storage.is_empty()
    assert storage.files("x") == []
    with pytest.raises(FileNotFoundError):
        storage.read("x/a")
    storage.put("x/a", b"1")
    storage.put("x/a", b"23")
    storage.put("x/y/b", b"4")
    storage.put("xx", b"")
    assert (storage.read("x/a"), list(storage.read_many(["x/y/b", "x/a"]))) == (b"23", [b"4", b"23"])
    assert [tuple(file) for file in storage.files("x")] == [("x/a", 2), ("x/y/b", 1)]
    assert (storage.exists("x/a"), storage.exists("x/c"), storage.is_empty()) == (True, False, False)
    assert storage.delete(["x/a", "x/c"]) == 0
    storage.clear("x")
    assert paths(storage) == ["xx"]


def test_one_of_many_writers_wins(storage: Storage) -> None:
    storage.check_decides()
    won: list[int] = []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        start.wait()
        try:
            storage.put_if_absent("commits/1", b"%d" % number)
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("commits/1") == b"%d" % won[0]
    assert paths(storage) == ["commits/1"]  # the probe, too, is gone


def test_a_repeated_request_knows_its_own(s3: S3Server) -> None:
    """The answer was lost, the driver asked again: what lies there is ours."""
    storage = s3.storage()
    storage.put_if_absent("1", b"ours")
    storage.put_if_absent("1", b"ours")
    with pytest.raises(FileExistsError, match="s3://"):
        storage.put_if_absent("1", b"theirs")


def test_files_are_moved_once(storage: Storage) -> None:
    for name in "ab":
        storage.put(f"s/{name}", name.encode())
    moves = [("s/a", "topic=1/a"), ("s/b", "topic=1/b"), ("s/c", "topic=1/c")]
    assert storage.publish(moves) == ["topic=1/c"]
    assert storage.publish(moves) == ["topic=1/c"]
    assert paths(storage) == ["topic=1/a", "topic=1/b"]
    assert storage.read("topic=1/b") == b"b"


def test_files_that_are_written_and_read_by_arrow(storage: Storage) -> None:
    table = pa.table({"n": list(range(100_000))})
    with storage.writer("x/n.parquet") as file, pq.ParquetWriter(file, table.schema) as writer:
        writer.write_table(table)
    with storage.reader("x/n.parquet") as file, pq.ParquetFile(file) as found:
        assert found.read() == table
    filesystem, root = storage.arrow()
    assert pq.read_table(f"{root}/x", filesystem=filesystem) == table


def test_a_file_that_is_given_up_leaves_nothing(storage: Storage) -> None:
    file = storage.writer("x/big")
    file.write(b"x" * (20 << 20))  # parts of it have been sent
    file.discard()
    assert storage.files() == []
    if isinstance(storage, RemoteStore):
        assert storage._fs().list_multipart_uploads(storage.address.split("/")[2]) == []


def test_it_travels(storage: Storage) -> None:
    storage.put("a", b"1")
    assert pickle.loads(pickle.dumps(storage)) == storage
    assert pickle.loads(pickle.dumps(storage)).read("a") == b"1"


AWAY = {
    "key": KEY, "secret": SECRET, "endpoint_url": "http://127.0.0.1:1",
    "config_kwargs": {"retries": {"max_attempts": 1}},
}  # fmt: skip


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver does not try again for seconds."""
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)


@pytest.mark.usefixtures("_at_once")
def test_secrets_are_not_told(s3: S3Server) -> None:
    storage = s3.storage()
    assert SECRET not in f"{storage!r} {storage}"
    wrong = RemoteStore("s3://no-such-bucket-here/a", {**AWAY, "endpoint_url": f"http://{SECRET}:1/"})
    with pytest.raises(StorageError) as raised:
        wrong.put("a", b"1")
    assert SECRET not in str(raised.value)
    with pytest.raises(OptionError) as refused:
        open_storage(f"s3://{KEY}:{SECRET}@bucket/a")
    assert SECRET not in str(refused.value)


@pytest.mark.usefixtures("_at_once")
def test_a_server_that_is_away_is_worth_another_try() -> None:
    storage = RemoteStore("s3://bucket/a", AWAY)
    with pytest.raises(StorageError, match="s3://bucket/a/x could not be read") as raised:
        storage.read("x")
    assert raised.value.retriable


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("gs://bucket/a", r"kerolox\[gcs\]"),
        ("abfs://box@account.dfs.core.windows.net/a", r"kerolox\[azure\]"),
        ("rsync://host/a", "rsync://host/a"),
    ],
)
def test_drivers_that_are_not_there(address: str, said: str) -> None:
    with pytest.raises(KeroloxError, match=said):
        open_storage(address).read("x")


def test_stores_that_do_not_decide() -> None:
    for address in ("hdfs://name:8020/a", "memory://a"):
        with pytest.raises(OptionError, match="Delta"):
            open_storage(address).check_decides()


def test_a_store_that_overwrites_is_found_out(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers that speak S3 take the condition, and do not keep it."""
    storage = s3.storage()
    fs = storage._fs()
    usual = fs.pipe_file
    monkeypatch.setattr(fs, "pipe_file", lambda path, content, mode="": usual(path, content))
    with pytest.raises(OptionError, match="refuses to overwrite; this one did"):
        storage.check_decides()
    assert storage.files() == []


def test_addresses(tmp_path: Path) -> None:
    assert open_storage(f"file://{tmp_path}/a") == open_storage(tmp_path / "a") == LocalFolder(tmp_path / "a")
    assert open_storage("s3://bucket/a/").address == "s3://bucket/a"
    assert open_storage("s3://bucket/a").name("b/c") == "s3://bucket/a/b/c"
    for address in ("s3://", ""):
        with pytest.raises(OptionError):
            open_storage(address)


def test_options(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"key": "a", "client_kwargs": {"verify": False}}))
    given = ["key=b", "client_kwargs.region_name=eu", "anon=true"]
    options = read_storage_options(given, file)
    assert options == {"key": "b", "client_kwargs": {"verify": False, "region_name": "eu"}, "anon": True}
    assert delta_options(RemoteStore("s3://b/a", {"key": "k", "endpoint_url": "http://h:1"})) == {
        "aws_access_key_id": "k",
        "aws_endpoint_url": "http://h:1",
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
    }
    assert delta_options(LocalFolder("/a")) is None
    file.write_text("key: [unfinished secret")
    for bad, where in ((["secretvalue"], None), (["key=1", "key.x=2"], None), ([], file)):
        with pytest.raises(OptionError, match="--storage-option") as raised:
            read_storage_options(bad, where)
        assert "secret" not in str(raised.value)
