"""Rows: all that a server declares about a request code, at the handler that serves it.

::

    @serves(RequestCode.GET_TOPIC_CONFIG, TopicConfigRequest, on(GET, topic="topic"))
    def config(self, request: Request[TopicConfigRequest]) -> Answer:
        \"\"\"Return the settings of a topic.\"\"\"

Guards, lanes, and the reference of requests use these rows, so a code without a rule cannot be served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from kerolox.front.needs import Rule
from kerolox.front.refusals import not_supported
from kerolox.front.requests import Answer, Handler, Request
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.header import Header

F = TypeVar("F", bound=Callable[..., Any])

_ROWS = "served_rows"  # attribute of a handler: its rows


class Row(NamedTuple):
    code: RequestCode
    handler: Handler
    header: type[Header] | None
    rule: Rule
    lane: str = "admin"
    rejected: str = ""  # the reason, if the request is not supported

    @property
    def description(self) -> str:
        """The first sentence of the handler's description, or the reason of a rejection."""
        text = " ".join((self.handler.__doc__ or "").split())
        return self.rejected or text.partition(". ")[0].rstrip(".") + "."


def serves(
    code: RequestCode, header: type[Header] | None, rule: Rule, *, lane: str = "admin"
) -> Callable[[F], F]:
    """Declare that the handler below serves requests of this code."""

    def declare(handler: F) -> F:
        handler.__dict__.setdefault(_ROWS, []).append(Row(code, handler, header, rule, lane))
        return handler

    return declare


def declared(part: type) -> list[Row]:
    """Return the rows that a class declares, with its plain functions as handlers."""
    return [row for name in dir(part) for row in getattr(getattr(part, name), _ROWS, ())]


def rows_of(*parts: object) -> list[Row]:
    """Return the rows of parts of a server, with their methods as handlers."""
    return [
        row._replace(handler=getattr(part, row.handler.__name__))
        for part in parts
        for row in declared(type(part))
    ]


def rejected(code: RequestCode, rule: Rule, why: str) -> Row:
    """Return the row of a request that is not supported. Only callers with its rights receive the reason."""
    answer = not_supported(f"{code.value} ({code.name})", why).answer()

    def reject(request: Request[None]) -> Answer:
        return answer

    return Row(code, reject, None, rule, rejected=why)
