"""The clusters of the stories: every test here runs against Apache's servers and against ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..conftest import Factory
from ..driver import JavaDriver
from .client import Client
from .cluster import Broker, Certificate, Cluster, Kind


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.make(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session", params=["apache", "ours", "ledger"])
def cluster(
    request: pytest.FixtureRequest,
    java_session: Factory,
    tmp_path_factory: pytest.TempPathFactory,
    certificate: Certificate,
) -> Iterator[Cluster]:
    """Shared by all stories of one kind: do not stop its servers, see :func:`fragile`."""
    kind: Kind = request.param
    made = Cluster(kind, java_session, tmp_path_factory.mktemp(f"cluster-{kind}"), certificate)
    yield made
    made.finish()


@pytest.fixture(scope="session")
def fragile(cluster: Cluster) -> Broker:
    """A broker of the cluster's kind, at its name server, that a story may kill and restart."""
    return cluster.new_broker("broker-fragile", cluster="FragileCluster")


@pytest.fixture(autouse=True)
def _finish_brokers(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a story started goes with it: an idle Java broker is not idle."""
    if "cluster" not in request.fixturenames:
        yield
        return
    made: Cluster = request.getfixturevalue("cluster")
    before = made.count
    yield
    made.finish_since(before)


@pytest.fixture
def client(java_driver: JavaDriver, cluster: Cluster) -> Client:
    return Client(java_driver, cluster.nameserver, cluster.kind)
