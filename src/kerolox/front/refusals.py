"""Refusal: the rejection of a request as a value, for the answer, the metrics and the audit log."""

from __future__ import annotations

import msgspec

from kerolox.errors import KeroloxError, Refused
from kerolox.front.requests import Answer
from kerolox.protocol.codes import ResponseCode, response_name

# Reasons, besides the names of response codes: each is a label of a metric, so they are few.
QUEUED_TOO_LONG = "queued_too_long"
LANE_FULL = "lane_full"
BODY_TOO_LONG = "body_too_long"
NOT_SUPPORTED = "not_supported"
NOT_AUTHENTICATED = "not_authenticated"
NOT_AUTHORIZED = "not_authorized"


class Refusal(msgspec.Struct, frozen=True):
    """The rejection of a request. ``reason`` is one of few words, ``text`` is for the caller."""

    reason: str
    code: int
    text: str

    @classmethod
    def of(cls, error: KeroloxError) -> Refusal:
        """Return the refusal that an error stands for. The default reason is the name of its code."""
        return cls(error.label or response_name(error.code).lower(), error.code, str(error))

    def error(self) -> Refused:
        """Return the error that handlers raise."""
        return Refused(self.code, self.text, self.reason)

    def answer(self) -> Answer:
        return Answer(code=self.code, remark=self.text, reason=self.reason)


def not_supported(request: str, why: str = "") -> Refusal:
    """Return the refusal of a request without a handler, or of one for a feature that is absent."""
    text = f" request type {request} not supported{': ' if why else ''}{why}"
    return Refusal(NOT_SUPPORTED, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
