"""One S3 server for all tests of a process; each takes a bucket of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
