"""Spark at servers that take TLS alone and known users alone; and that no secret is told on the way.

Options of queries are part of Spark's plans, which it shows in its web page, writes to its log of events and
prints. So what a query was given is looked for everywhere.
"""

from __future__ import annotations

import json
import os
import stat
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pytest
from typer.testing import CliRunner

import kerolox.spark
from kerolox import blocking
from kerolox.cli.main import app
from kerolox.client.environment import VARIABLES
from kerolox.client.messages import Message
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import OptionError
from kerolox.spark import session as sessions
from kerolox.spark.source import progress
from tests.secured_servers import ALICE, SECRET, SecuredServers, secured_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN, PASSWORD = "a-t0ken-of-alice", "the-p4ssword-of-a-key"
SECRETS = (SECRET, TOKEN, PASSWORD)
BODIES = {f"order {number}".encode() for number in range(40)}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    with secured_servers(tmp_path_factory.mktemp("secured")) as running:
        for topic in ("secured-in", "secured-out"):
            running.create_topic(topic, queues=2)
        with blocking.Producer(running.options(), group="alices-shop") as producer:
            producer.send_many([Message("secured-in", body) for body in BODIES])
        yield running


@pytest.fixture
def given(servers: SecuredServers) -> dict[str, str]:
    """All that a query can be told of keys and TLS."""
    return {
        "nameserver": servers.nameserver,
        "accessKey": ALICE.access_key,
        "secretKey": SECRET,
        "securityToken": TOKEN,
        "tls": "true",
        "tlsCa": servers.ca,
        "tlsKeyPassword": PASSWORD,
    }


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "ROCKETMQ_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


# --- where secrets could be ---------------------------------------------------------------------------


class Told:
    """All that Spark tells, by place."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.texts: dict[str, str] = {}

    def add(self, **texts: object) -> None:
        self.texts |= {place: str(text) for place, text in texts.items()}

    def add_files(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.texts[f"file {path.name}"] = path.read_bytes().decode("utf-8", "replace")

    def add_events(self) -> None:
        """The log of events up to now."""
        place = self._spark.sparkContext.getConf().get("spark.eventLog.dir")
        self.add_files(Path(unquote(urlparse(str(place)).path)))

    def add_printed(self) -> None:
        """What the JVM of the driver has printed during this test, and the Python processes it starts. It is
        kept by pytest in a file, which only the JVM has open under a name."""
        assert sessions._jvm is not None
        path = f"/proc/{sessions._jvm.process.pid}/fd/2"
        if os.path.exists(path) and stat.S_ISREG(os.stat(path).st_mode):
            self.texts["printed"] = Path(path).read_bytes().decode("utf-8", "replace")

    def add_pages(self) -> None:
        """The web page, and what programs read instead."""
        context = self._spark.sparkContext
        api = f"/api/v1/applications/{context.applicationId}"
        queries = f"{api}/sql?details=true&planDescription=true&length=10000"
        for path in (f"{api}/environment", f"{api}/jobs", f"{api}/stages", queries):
            self._page(path)
        for path in ("/SQL/", "/StreamingQuery/", "/environment/", "/jobs/", "/stages/", "/executors/"):
            self._page(path)
        for query in json.loads(self.texts[queries])[-4:]:
            self._page(f"/SQL/execution/?id={query['id']}")

    def _page(self, path: str) -> None:
        with urllib.request.urlopen(f"{self._spark.sparkContext.uiWebUrl}{path}", timeout=60) as answer:
            self.texts[path] = answer.read().decode()

    def check(self) -> None:
        found = [
            (place, secret) for place, text in self.texts.items() for secret in SECRETS if secret in text
        ]
        assert not found


@pytest.fixture
def told(spark: SparkSession) -> Iterator[Told]:
    spark.sparkContext.setLogLevel("INFO")
    yield Told(spark)
    spark.sparkContext.setLogLevel("WARN")


def wait_until(condition: Callable[[], bool], query: Any) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert query.exception() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


# --- stories ------------------------------------------------------------------------------------------


def test_a_streaming_query_tells_no_secret(
    spark: SparkSession, servers: SecuredServers, given: dict[str, str], told: Told, tmp_path: Path
) -> None:
    """From a topic to a topic: nothing that Spark shows, prints or keeps has a secret in it."""
    rows = (
        spark.readStream.format("rocketmq")
        .options(**given, topic="secured-in", startingOffsets="earliest", group="alices-query")
        .load()
        .select("body")
    )
    checkpoint = str(tmp_path / "checkpoint")
    writer = rows.writeStream.format("rocketmq").options(**given, topic="secured-out", group="alices-sink")
    query = kerolox.spark.start(writer.option("checkpointLocation", checkpoint))
    try:
        wait_until(lambda: any(each["numInputRows"] for each in query.recentProgress), query)
        told.add(
            rows=rows._jdf.queryExecution().toString(),  # type: ignore[operator]
            plan=query._jsq.explainInternal(True),
            progress=[each.json for each in query.recentProgress],
            options=repr(writer.__dict__),
        )
        told.add_pages()
    finally:
        query.stop()
    with SocketCluster(servers.options(), patience_s=30) as cluster:
        queues = cluster.route("secured-out").readable
        edges = cluster.edges(queues)
        read = [cluster.read(queue, 0, edges[queue].end, group="alices-desk") for queue in queues]
        assert {message.body for part in read for message in part} == BODIES
    told.add_files(tmp_path)
    told.add_events()
    told.add_printed()
    assert {"plan", "/SQL/", "/environment/", "file metadata"} <= set(told.texts)
    assert any("SparkListenerSQLExecutionStart" in text for text in told.texts.values())
    told.check()


@contextmanager
def settings(spark: SparkSession, given: dict[str, str]) -> Iterator[None]:
    """A session as if it had begun with these settings."""
    begun_with = spark.sparkContext._jsc.sc().conf()  # type: ignore[union-attr]
    for name, value in given.items():
        spark.conf.set(f"spark.kerolox.{name}", value)
        begun_with.set(f"spark.kerolox.{name}", value)
    try:
        kerolox.spark.register(spark)
        yield
    finally:
        for name in given:
            spark.conf.unset(f"spark.kerolox.{name}")
            begun_with.remove(f"spark.kerolox.{name}")
        kerolox.spark.register(spark)
        progress._listening[spark].use({})


def test_settings_of_the_session(spark: SparkSession, given: dict[str, str], told: Told) -> None:
    """What is set under spark.kerolox need not be given to every query; Spark shows asterisks for it."""
    with settings(spark, given):
        rows = spark.read.format("rocketmq").options(topic="secured-in", group="alices-query").load()
        assert {bytes(row.body) for row in rows.select("body").collect()} == BODIES
        told.add(rows=rows._jdf.queryExecution().toString())  # type: ignore[operator]
        told.add(set=spark.sql("SET").collect())
    told.add_pages()
    told.add_events()
    told.add_printed()
    told.check()


def test_a_secret_that_is_set_later_is_refused(spark: SparkSession) -> None:
    """Spark would write it into its log of events."""
    spark.conf.set("spark.kerolox.secretKey", SECRET)
    try:
        with pytest.raises(OptionError, match="a setting from the start of the session") as caught:
            kerolox.spark.register(spark)
    finally:
        spark.conf.unset("spark.kerolox.secretKey")
    assert SECRET not in str(caught.value)


def test_views(spark: SparkSession, given: dict[str, str], told: Told) -> None:
    options = given | {"topic": "secured-in", "group": "alices-view"}
    words = ", ".join(f"`kerolox.{name}` '{value}'" for name, value in options.items())
    view = f"CREATE TEMPORARY VIEW secured USING rocketmq OPTIONS ({words})"
    told.add(view=spark.sql(f"EXPLAIN EXTENDED {view}").collect())
    spark.sql(view)
    assert spark.sql("SELECT * FROM secured").count() == len(BODIES)
    spark.sql("DROP VIEW secured")
    told.add_pages()
    told.add_events()
    told.add_printed()
    told.check()


def test_who_is_not_let_in_hears_why_at_once(spark: SparkSession, given: dict[str, str], told: Told) -> None:
    wrong = given | {"secretKey": "not-" + SECRET}
    with pytest.raises(Exception, match="Give the keys of a user that this server knows") as caught:
        spark.read.format("rocketmq").options(**wrong, topic="secured-in").load().count()
    told.add(wrong=caught.value)
    with pytest.raises(Exception, match="has no permission to access") as caught:
        spark.read.format("rocketmq").options(**given, topic="forbidden").load().count()
    told.add(right=caught.value)
    with pytest.raises(Exception, match="tls = true to be given as well") as caught:
        spark.read.format("rocketmq").options(
            topic="t", nameserver="h:1", tlsKeyPassword=PASSWORD
        ).load().count()
    told.add(half=caught.value)
    told.add_printed()
    told.check()


def test_the_archive_command_by_the_environment(
    spark: SparkSession, servers: SecuredServers, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "stop", lambda: None)  # the session is that of all tests
    for name, value in servers.variables().items():
        monkeypatch.setenv(name, value)
    to = str(tmp_path / "archive")
    done = CliRunner().invoke(
        app,
        ["pipeline", "archive", "--topic", "secured-in", "--to", to, "--group", "alices-archive", "--json"],
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["messages"] == len(BODIES)
    assert spark.read.parquet(to).count() == len(BODIES)
    told.add(output=done.output)
    told.add_files(tmp_path)
    told.add_pages()
    told.add_events()
    told.add_printed()
    told.check()
