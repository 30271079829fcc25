"""What peers say is quoted in log lines: a name with a line break in it must not write a line of its own."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

import kerolox
from kerolox.access.book import Book
from kerolox.access.book_file import save_book
from kerolox.log_lines import LINES_MAX, CountingHandler
from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials, Signing
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.frame import JSON, pack_frame
from kerolox.protocol.headers.kv import PutKvRequest
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.registration import UnregisterBrokerRequest
from kerolox.protocol.headers.route import DeleteTopicAtNameServerRequest
from kerolox.testing.access import secured
from kerolox.testing.broker import running_broker
from kerolox.testing.nameserver import running_nameserver

SOURCES = Path(kerolox.__file__).parent
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
# Addresses of sockets, paths and settings of our own, words from a list of ours: nobody else writes these.
OURS = frozenset({
    "advertised", "auth", "bits", "by", "certificate", "crashed", "directory", "from_check", "here", "keys",
    "language", "listening", "nameserver", "outcome", "part", "path", "peer", "request", "role", "root",
    "source", "store", "targets", "vip",
})  # fmt: skip

OWN_LINES = ("broker_started ", "broker_stopped ", "nameserver_started ", "nameserver_stopped ")


def log_formats(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "log"
        ):
            assert isinstance(node.args[0], ast.Constant), f"line {node.lineno}: no constant format"
            yield node.lineno, node.args[0].value


@pytest.mark.parametrize("part", ["broker", "front", "nameserver", "net", "store"])
def test_what_is_not_ours_is_quoted(part: str) -> None:
    found = 0
    for path in sorted((SOURCES / part).rglob("*.py")):
        for line, text in log_formats(ast.parse(path.read_text(encoding="utf-8"))):
            found += 1
            if text.startswith(OWN_LINES):
                continue
            for key in re.findall(r"\b([a-z_]+)=%s", text):
                assert key in OURS, f"{path.name}:{line}: {key}=%s may hold a line break: write {key}=%r"
    assert found


async def test_a_line_break_in_a_name_makes_no_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kerolox")
    forged = "t\nnameserver_stopped address=everything"
    async with running_nameserver() as nameserver, Dialer() as dialer:
        for code, header in (
            (RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicAtNameServerRequest(topic=forged)),
            (RequestCode.PUT_KV_CONFIG, PutKvRequest(namespace=forged, key=forged, value=forged)),
            (
                RequestCode.UNREGISTER_BROKER,
                UnregisterBrokerRequest(
                    broker_name=forged, broker_addr=forged, cluster_name=forged, broker_id=0
                ),
            ),
        ):
            assert (await dialer.call(nameserver.address, code, header)).code == 0
    written = [record.getMessage() for record in caplog.records]
    assert sum("everything" in line for line in written) >= 3
    assert not any("\n" in line for line in written if "everything" in line)


# --- what is written ---------------------------------------------------------------------------------------


@pytest.fixture
def written() -> Iterator[StringIO]:
    """The log as our programs write it."""
    stream = StringIO()
    handler = CountingHandler(stream)
    logger = logging.getLogger("kerolox")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


def test_values_are_cut_and_quoted_whatever_the_format_says(written: StringIO) -> None:
    log = logging.getLogger("kerolox.test")
    log.warning(
        "a_line name=%s error=%r count=%d", "x\x1b[2J\nforged" + "y" * 900_000, KeyError("k" * 900_000), 7
    )
    try:
        raise ValueError("broken\x1b[31m" + "z" * 900_000)
    except ValueError:
        log.exception("a_failure of=%(name)s", {"name": "n" * 900_000})
    text = written.getvalue()
    assert len(text) < 20_000
    assert "\x1b" not in text
    assert "name=x\\x1b[2J\\nforged" in text
    assert "count=7" in text
    assert "ValueError: broken\\x1b[31mzz" in text


def test_lines_that_repeat_are_counted(written: StringIO) -> None:
    log = logging.getLogger("kerolox.test")
    for number in range(LINES_MAX + 50):
        log.info("a_line number=%d", number)
        log.debug("not_asked_for number=%d", number)
    log.warning("another_line")
    for _ in range(LINES_MAX + 5):
        log.info("kept_line", extra={"every": True})
    (handler,) = [one for one in logging.getLogger("kerolox").handlers if isinstance(one, CountingHandler)]
    handler.close()
    text = written.getvalue()
    assert text.count(" a_line ") == LINES_MAX
    assert text.count(" kept_line") == LINES_MAX + 5
    assert text.count(" another_line") == 1
    assert "lines_left_out event='a_line' count=50" in text
    assert text.count("lines_left_out") == 1


EVE = Credentials("eve", "secret-of-eve")  # may do nothing


async def test_strangers_do_not_flood_the_log(written: StringIO, tmp_path: Path) -> None:
    """One frame once wrote 700 kB of control characters; a denied pull its name, and was answered with it."""
    long = "\u0001" * 70_000
    pull = PullRequest(
        consumer_group="g", topic="t" * 900_000, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=0,
        commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*",
    )  # fmt: skip
    book = Book()
    book.create_user(bodies.User(username=EVE.access_key, password=EVE.secret_key))
    path = tmp_path / "access.json"
    save_book(path, book)
    async with running_broker(**secured(access_path=str(path))) as running:
        answers = []
        for fields in ({"AccessKey": long, "Signature": long}, {"topic": long}):
            async with Dialer() as dialer:
                answers.append(
                    await dialer.call(running.address, RequestCode.GET_BROKER_CONFIG, fields=fields)
                )
        async with Dialer() as dialer:
            dialer.handlers.hooks.append(Signing(EVE))
            answers.append(await dialer.call(running.address, RequestCode.PULL_MESSAGE, pull))
        reader, writer = await asyncio.open_connection(*running.address.split(":"))
        header = b'{"code":10,"opaque":"' + b"\\u0001" * 120_000 + b'"}'
        writer.write(pack_frame(JSON, header))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    assert all(answer.code != 0 for answer in answers)
    assert all(len(answer.remark or "") < 3000 for answer in answers)
    assert len(written.getvalue()) < 20_000
    assert "\u0001" not in written.getvalue()


def test_a_command_without_a_log_escapes_what_libraries_warn_of() -> None:
    script = (
        "import logging\n"
        "from kerolox.log_lines import guard_last_resort\n"
        "guard_last_resort()\n"
        "logging.getLogger('kerolox.client').info('not shown')\n"
        "for _ in range(150):\n"
        "    logging.getLogger('kerolox.client').warning('remark %s', '\\x1b[2J' + 'x' * 9000)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "\x1b" not in ran.stderr
    lines = ran.stderr.splitlines()
    assert len(lines) == LINES_MAX + 1
    assert "\\x1b[2J" in lines[0]
    assert max(map(len, lines)) < 1000
    assert "lines_left_out" in lines[-1]
