"""Unclosed sockets and files, reported with the test that opened them.

Objects in cycles are collected in a later test, or not at all. So each socket and file is recorded with its
test when it is opened, and garbage is collected at the end of each module. The report comes at the end of the
run: the test that happens to run during a collection does not fail. With KEROLOX_REQUIRE_CLOSED (`make
closed`) they fail the run; the gate shows them only, for under load a peer of a test may end after its loop.
"""

from __future__ import annotations

import gc
import io
import os
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

REQUIRED = "KEROLOX_REQUIRE_CLOSED"
OUTPUT = "kerolox_leaks"  # of a worker
SHOWN_MAX = 30
OUTSIDE = "outside of tests"


class Leaks:
    """Plugin that records what is collected unclosed."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._at = OUTSIDE  # what runs now
        self._sockets: dict[int, str] = {}  # id → test that opened it
        self._files: dict[str | int, str] = {}  # path or descriptor → test that opened it last
        self._module = ""

    def start(self) -> None:
        warnings.filterwarnings("error", category=ResourceWarning)  # between tests, too
        sys.addaudithook(self._audit)
        sys.unraisablehook = self.record

    # --- what was opened where ------------------------------------------------------------------------

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(args[0], str | int):
                self._files[args[0]] = self._at
        elif event == "socket.__new__":
            self._sockets[id(args[0])] = self._at

    def _opener(self, item: Any) -> str | None:
        if isinstance(item, socket.socket):
            return self._sockets.get(id(item))
        if isinstance(item, io.FileIO):
            return self._files.get(item.name)
        for name in ("_sock", "_ssock", "_transport"):  # of a transport, an event loop, a stream writer
            if (part := getattr(item, name, None)) is not None:
                return self._opener(part)
        return None

    def record(self, raised: Any) -> None:
        """Record an exception that nothing could raise: ``sys.unraisablehook``."""
        item = raised.object
        trace = raised.exc_traceback
        if trace is not None and callable(item):  # the method __del__ of an object
            item = trace.tb_frame.f_locals.get("self", item)
        opener = self._opener(item)
        place = f"opened in {opener}" if opener else f"collected in {self._at}"
        what = raised.exc_value if raised.exc_value is not None else raised.exc_type.__name__
        self.found[f"{place}: {what!r}"] += 1

    # --- when -----------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        module = item.nodeid.partition("::")[0]
        if module != self._module:
            self._collect()
            self._module = module
        self._at = item.nodeid
        try:
            return (yield)
        finally:
            self._at = f"{module}, after a test"

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        before = self._at
        if fixturedef.scope != "function":
            self._at = f"{before} (fixture {fixturedef.argname})"
        try:
            return (yield)
        finally:
            self._at = before

    def _collect(self) -> None:
        self._at = f"{self._module or OUTSIDE}, at its end"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gc.collect()
        gc.freeze()  # what is left belongs to modules and fixtures: it is not searched again

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        gc.unfreeze()
        self._collect()
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[OUTPUT] = dict(self.found)
        elif self.found and session.exitstatus == pytest.ExitCode.OK and os.environ.get(REQUIRED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.found.update(getattr(node, "workeroutput", {}).get(OUTPUT, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.found:
            return
        terminalreporter.section("left open", red=True)
        for text, count in sorted(self.found.items())[:SHOWN_MAX]:
            terminalreporter.line(text if count == 1 else f"{text} ({count} times)")
        if len(self.found) > SHOWN_MAX:
            terminalreporter.line(f"and {len(self.found) - SHOWN_MAX} more")
