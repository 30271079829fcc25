"""Cache of compiled conditions: a condition in a pull or heartbeat is usually known already.

Compiling takes about a microsecond a character. A thread compiles a long unknown condition before its request
is handled, so that a client that sends many of them does not delay others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from sys import getsizeof
from typing import Final

from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.filters.lexer import FilterError
from kerolox.protocol.filters.sql import SqlFilter, compile_filter
from kerolox.protocol.subscription import SQL92

log = logging.getLogger(__name__)

COMPILED_MAX: Final = 1000
COMPILED_BYTES_MAX: Final = 96 << 20  # of all compiled conditions, with their cached results
LONG_CHARACTERS: Final = 2048
ERROR_BYTES: Final = 2048  # of an invalid expression, beside its text
_SHOWN_MAX: Final = 200  # characters of an expression in a log line

FilterKey = tuple[str | None, str]  # kind and expression


class NotCompiled(Exception):
    """A long condition is not compiled yet: call :meth:`CompiledFilters.prepare`, then try again."""

    def __init__(self, key: FilterKey) -> None:
        self.key = key
        super().__init__("a long condition is to be compiled first")


class CompiledFilters:
    """Cache: kind and expression → compiled condition, or its error. The oldest entries are removed first."""

    def __init__(self) -> None:
        self._known: dict[FilterKey, SqlFilter | FilterError] = {}
        self._size_bytes = 0
        # One thread: compiling holds the interpreter, so a second one would only slow the loop.
        self._pool = ThreadPoolExecutor(1, "filter-compiler")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def get(self, key: FilterKey) -> SqlFilter:
        """Return the compiled condition; compile it if it is unknown. Raises :class:`FilterError` for an
        invalid expression."""
        found = self._known.get(key)
        if found is None:
            found = _compiled(key)
            self._put(key, found)
        if isinstance(found, FilterError):
            # A new error, since the raised one collects frames and the cached one must not.
            raise FilterError(found.expression, found.at, found.what)
        return found

    def check_known(self, key: FilterKey) -> None:
        """Raise :class:`NotCompiled` for an unknown condition that takes long to compile."""
        if len(key[1]) > LONG_CHARACTERS and key not in self._known:
            raise NotCompiled(key)

    def unknown(self, wanted: Iterable[SubscriptionData]) -> list[FilterKey]:
        """Return the unknown conditions of these subscriptions that take long to compile."""
        return [
            key
            for data in wanted
            if len(data.sub_string or "") > LONG_CHARACTERS
            and (key := key_of(data))[0] == SQL92
            and key not in self._known
        ]

    async def prepare(self, keys: Iterable[FilterKey]) -> None:
        """Compile conditions in a thread. They are in the cache when this returns, until the caller
        awaits."""
        loop = asyncio.get_running_loop()
        made = {key: await loop.run_in_executor(self._pool, _compiled, key) for key in dict.fromkeys(keys)}
        for key, found in made.items():
            self._put(key, found)

    def _put(self, key: FilterKey, found: SqlFilter | FilterError) -> None:
        known = self._known
        before = known.get(key)
        if before is not None:
            self._size_bytes -= _size_of(before)
        known[key] = found
        self._size_bytes += _size_of(found)
        while len(known) > COMPILED_MAX or self._size_bytes > COMPILED_BYTES_MAX:
            self._size_bytes -= _size_of(known.pop(next(iter(known))))
        if isinstance(found, SqlFilter) and found.ignored_from >= 0:
            expression = key[1]
            log.warning(
                "filter_has_more expression=%r ignored=%r next='join conditions by AND or OR'",
                shown(expression), shown(expression[found.ignored_from :]),
            )  # fmt: skip


def key_of(wanted: SubscriptionData) -> FilterKey:
    return wanted.expression_type, wanted.sub_string or ""


def shown(expression: str | None) -> str:
    """Return the beginning of an expression, for log lines."""
    return (expression or "")[:_SHOWN_MAX]


def _compiled(key: FilterKey) -> SqlFilter | FilterError:
    kind, expression = key
    try:
        if kind != SQL92:
            raise FilterError(expression, 0, f"filters of type {kind} are not supported, only {SQL92}")
        return compile_filter(expression)
    except FilterError as error:
        return error.with_traceback(None)  # cached without the frames of the parser


def _size_of(found: SqlFilter | FilterError) -> int:
    return found.size_bytes if isinstance(found, SqlFilter) else getsizeof(found.expression) + ERROR_BYTES


def no_property_filter(wanted: SubscriptionData) -> str:
    """Return the remark of a rejection when SQL92 filters are disabled."""
    return (
        f"The broker does not support consumer to filter message by {wanted.expression_type} "
        "(enablePropertyFilter=false)"
    )
