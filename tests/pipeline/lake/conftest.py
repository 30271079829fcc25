"""One S3 server for all tests of a process, with a bucket for each; and other machines that write there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kerolox.pipeline.lake.remote_store import RemoteStore
from tests.rig.s3_server import S3Server, s3_server
from tests.spark.conftest import (  # noqa: F401
    broker,
    new_topic,
    pytest_collection_modifyitems,
    send,
    spark,
    topic,
)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``elsewhere()``: what opens an archive from now on is on another machine, where no lock is seen."""

    def move() -> None:
        folder = tempfile.mkdtemp(prefix="kerolox-elsewhere-")
        monkeypatch.setattr(RemoteStore, "lock_folder", Path(folder))

    return move
