"""The name server's small table of settings."""

from __future__ import annotations

from kerolox.protocol.header import Header


class PutKvRequest(Header, frozen=True, kw_only=True):
    """Set a value. Java answers an error, not silence, when a field is missing."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class GetKvRequest(Header, frozen=True, kw_only=True):
    """Asks for a value."""

    namespace: str
    key: str


class GetKvAnswer(Header, frozen=True, kw_only=True):
    """The value."""

    value: str | None = None


class DeleteKvRequest(Header, frozen=True, kw_only=True):
    """Forget a value. Java answers an error, not silence, when a field is missing."""

    namespace: str | None = None
    key: str | None = None


class KvListRequest(Header, frozen=True, kw_only=True):
    """All values of a namespace."""

    namespace: str
