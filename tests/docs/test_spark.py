"""docs/SPARK.md: its code is run as it stands there, section by section, and so are its commands.

What a piece needs and what must have come of it is in comments before it. ``/data`` is a temporary folder.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from kerolox.blocking import Producer
from kerolox.cli.main import app
from kerolox.client.messages import Message
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import OptionError
from kerolox.spark import session as sessions
from kerolox.spark.source.options import SOURCE
from kerolox.testing import BrokerThread, broker_in_thread
from tests.docs import option_tables
from tests.docs.test_code import ADDRESS, ON_SPARK, Section, sections
from tests.spark.conftest import spark  # noqa: F401
from tests.spark.store_maker import StoreMaker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "SPARK.md"
PLACES = [
    *(pytest.param(each, id=each.title) for each in sections(PAGE, "python", "console")),
    *(
        pytest.param(each, id=f"README: {each.title}")
        for each in sections(ROOT / "README.md")
        if each.title == ON_SPARK
    ),
]
# Commands that need more than a test has: another machine, other programs.
NOT_RUN = re.compile(r"pip install |export |spark-submit |.* --master spark://|.* s3://")

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with broker_in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def names(spark: SparkSession, broker: BrokerThread, folder: Path) -> dict[str, Any]:  # noqa: F811
    """Names that the pieces of the page share, as in the session of a reader."""
    from pyspark.sql import functions

    def send(topic: str, count: int) -> None:
        broker.create_topic(topic)
        with Producer(broker.nameserver_address, group="guide") as producer:
            tags = ("paid", "open")
            producer.send_many(
                Message(topic, f"{n}", tags=tags[n % 2], keys=[f"k-{n}"], properties={"amount": str(n)})
                for n in range(count)
            )

    def store_files(path: str, count: int) -> None:
        maker = StoreMaker(Path(path))
        for number in range(count):
            topic = ("orders", "refunds")[number % 2]
            maker.add(topic, b"%d" % number, number % 3, properties={"KEYS": f"k-{number}"})
        maker.write()

    def wait_drained(topic: str, group: str) -> None:
        deadline_s = time.monotonic() + 20
        with SocketCluster(broker.nameserver_address) as cluster:
            queues = cluster.route(topic).readable
            while any(cluster.committed(queue, group) != cluster.max_offset(queue) for queue in queues):
                assert time.monotonic() < deadline_s
                time.sleep(0.05)

    return {
        "__name__": "guide",
        "spark": spark,
        "f": functions,
        "send": send,
        "create": broker.create_topic,
        "store_files": store_files,
        "wait_drained": wait_drained,
    }


@pytest.mark.parametrize("section", PLACES)
def test_code(
    section: Section,
    names: dict[str, Any],
    broker: BrokerThread,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "stop", lambda: None)  # by commands; the session is that of all tests
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))

    def here(text: str) -> str:
        return text.replace(ADDRESS, broker.nameserver_address).replace("/data/", f"{folder}/")

    def run(source: str, file: str) -> None:
        exec(compile(here(source), file, "exec"), names)

    for piece in section.pieces:
        run(piece.notes.get("before", ""), "before")
        if piece.kind == "python":
            run(piece.padded, piece.file)
        else:
            for line in piece.code.splitlines():
                run_command(here(line).removeprefix("$ "))
        run(piece.notes.get("after", ""), "after")


def run_command(line: str) -> None:
    if NOT_RUN.match(line):
        return
    program, *arguments = shlex.split(line)
    assert program == "kerolox", line
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{line}\n{result.output}"


def test_tables_of_options_and_columns_are_those_declared() -> None:
    assert PAGE.read_text() == option_tables.written(), "python -m tests.docs.option_tables writes them anew"


def test_options_of_kafkas_connector_are_what_the_page_says() -> None:
    table = re.search(r"<!-- kafka: source -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert table is not None
    lines = [[*re.findall(r"`([^`]*)`", line), line] for line in table[1].splitlines() if "`" in line]
    told = {line[0]: line for line in lines if "*" not in line[0] + line[1]}
    assert len(told) >= 24
    accepted = {name.lower() for option in SOURCE.options for name in (option.key, *option.aliases)}
    for name, line in told.items():
        if " | same | " in line[-1]:
            assert name.lower() in accepted, name
        else:
            with pytest.raises(OptionError, match=line[1 if "topic` and" not in line[-1] else 2]):
                SOURCE.parse({name: "1"}, "batch")


def test_links_lead_somewhere() -> None:
    text = PAGE.read_text()
    titles = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.M)
    }
    linked = re.findall(r"\]\(#([\w-]+)\)", text)
    assert len(linked) > 10
    assert set(linked) <= titles
