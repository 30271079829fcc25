"""What peers say is quoted in log lines: a name with a line break in it must not write a line of its own."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kerolox
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.kv import PutKvRequest
from kerolox.protocol.headers.registration import UnregisterBrokerRequest
from kerolox.protocol.headers.route import DeleteTopicAtNameServerRequest
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
