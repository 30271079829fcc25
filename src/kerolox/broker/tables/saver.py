"""Saving of the broker's tables: topics and groups at every change, offsets at intervals.

A table is copied on the event loop, where nothing changes it meanwhile, and encoded and written by a thread.
Changes during a write are written together after it. Callers that wait for a save get its error: see
:mod:`kerolox.unsaved`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from kerolox.clock import Clock, TimerHandle
from kerolox.store.errors import StoreError
from kerolox.store.failures import Kind
from kerolox.store.standing_failures import StandingFailures
from kerolox.store.tables.table import Table
from kerolox.unsaved import NotSaved, Then


class TableSaver:
    """Saver of one table. Each save writes the newest content."""

    def __init__(self, table: Table, executor: Executor, failing: StandingFailures) -> None:
        self.table = table
        self._executor = executor
        self._wanted = False
        self._waiting: list[Then] = []
        self._task: asyncio.Task[None] | None = None
        self._failing = failing
        self._name = os.path.basename(table.path)

    def save(self, then: Then | None = None) -> None:
        """Save soon; ``then`` is called when the present content has been written, or with the error."""
        self._wanted = True
        if then is not None:
            self._waiting.append(then)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def saved(self) -> None:
        """Wait until the present content is written. Raises NotSaved."""
        done: asyncio.Future[NotSaved | None] = asyncio.get_running_loop().create_future()
        self.save(lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error

    async def close(self) -> None:
        """Write unsaved changes."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.table.changed:
            self.save()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _write(self, content: dict[str, Any]) -> None:
        self.table.save(self.table.encode(content))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # Callers that wait now are served by this write; later ones by another.
            while self._wanted:
                self._wanted = False
                waiting, self._waiting = self._waiting, []
                failed: NotSaved | None = None
                try:
                    await loop.run_in_executor(self._executor, self._write, self.table.copied())
                except StoreError as error:
                    failed = NotSaved(self.table.path, error)
                    self._failing.failed(Kind.TABLE, error, work=self._name)
                else:
                    self._failing.passed(Kind.TABLE, self._name)
                for then in waiting:
                    then(failed)
        finally:
            self._task = None


class TablesSaver:
    """Savers of all tables of a broker. Nothing is written before :meth:`start`, because a table may be wrong
    until all of them are loaded and compared."""

    def __init__(self, clock: Clock, failing: StandingFailures) -> None:
        self._clock = clock
        self._failing = failing
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kerolox-tables")
        self._savers: dict[str, TableSaver] = {}
        self._intervals: dict[str, Callable[[], int]] = {}
        self._timers: dict[str, TimerHandle] = {}
        self._started = False
        self._closed = False

    def start(self) -> None:
        self._started = True
        for path in self._savers:
            self._await_tick(path)

    def keep(self, table: Table, interval_ms: Callable[[], int]) -> TableSaver:
        """Save a table at intervals if it has changed, and whenever its owner asks.

        The interval is read again each time. A failed save is repeated after it.
        """
        saver = self._savers[table.path] = TableSaver(table, self._thread, self._failing)
        self._intervals[table.path] = interval_ms
        if self._started:
            self._await_tick(table.path)
        return saver

    def _await_tick(self, path: str) -> None:
        self._timers[path] = self._clock.beat(self._intervals[path]() / 1000, lambda: self._tick(path))

    def _tick(self, path: str) -> None:
        saver = self._savers[path]
        if saver.table.changed:
            saver.save()
        self._await_tick(path)

    async def close(self) -> None:
        """Write unsaved changes and stop."""
        if self._closed or not self._started:
            return
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for saver in self._savers.values():
            await saver.close()
        self._thread.shutdown(wait=True)
