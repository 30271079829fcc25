"""Iceberg archives in other catalogs and warehouses: Apache's REST catalog, and files in an S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kerolox.client.messages import Message, Receipt
from kerolox.pipeline.archive.iceberg import IcebergArchive
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.lake.staging import OWN_FOLDER
from kerolox.testing.threads import BrokerThread
from tests.peers.jars import PeersUnavailable
from tests.rig.iceberg_rest import rest_catalog
from tests.rig.s3_server import KEY, SECRET, S3Server, s3_server

from .iceberg_archiving import NAME, STEPS, archive, bodies
from .test_iceberg_archive import kill_story, messages, once

pytestmark = pytest.mark.long
Send = Callable[[Sequence[Message]], list[Receipt]]


def s3_properties(server: S3Server) -> dict[str, str]:
    """As pyiceberg and Iceberg's own server name them."""
    return {
        "s3.endpoint": server.endpoint,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
    }


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["sql on s3", "rest on disk", "rest on s3"])
def place(request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path) -> Iterator[CatalogPlace]:
    catalog, _, files = request.param.split()
    told = s3_properties(s3) if files == "s3" else {}
    warehouse = f"{s3.bucket()}/warehouse" if files == "s3" else ""
    if catalog == "sql":
        yield CatalogPlace(f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse, options=told)
        return
    own = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.path-style-access": "true"}
    client = {"client.region": "us-east-1"}
    try:
        with rest_catalog(tmp_path / "rest", warehouse, {**told, **own, **client} if told else {}) as address:
            yield CatalogPlace(address, options=told)
    except PeersUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_killed_loses_nothing_and_leaves_nothing(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send, step: str
) -> None:
    kill_story(place, broker, topic, send, step)
    assert_nothing_left(place)


def test_the_faster_of_two_runs_wins(
    place: CatalogPlace, broker: BrokerThread, topic: str, send: Send
) -> None:
    from .test_iceberg_archive import two_runs

    send(messages(topic, 50))
    two_runs(place, broker.nameserver_address, topic)
    assert bodies(place) == once(50)
    assert archive(place, broker.nameserver_address, topic).rows == 0
    assert_nothing_left(place)


def assert_nothing_left(place: CatalogPlace) -> None:
    """Every file below the table's data is one that a snapshot names."""
    made = IcebergArchive(NAME, place)
    from kerolox.pipeline.archive.files import Format

    made.open(Format())
    there = {file.path for file in made.storage.files() if not file.path.startswith(OWN_FOLDER)}
    assert there == made.named()
    made.close()
