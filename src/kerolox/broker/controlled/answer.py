"""Type of a controller's answer, with the fields that a broker uses."""

from __future__ import annotations

from typing import Protocol, TypeVar

from kerolox.protocol.header import Header

H = TypeVar("H", bound=Header)


class ControllerAnswer(Protocol):
    code: int
    remark: str | None
    body: bytes

    def header(self, kind: type[H], /) -> H: ...
