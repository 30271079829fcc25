"""Refusals carry a reason for metrics, a code and a text."""

from __future__ import annotations

import pytest

from kerolox.access.guard import NotKnown
from kerolox.errors import InvalidRequest, KeroloxError, Overloaded, Refused
from kerolox.front.refusals import Refusal
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.testing.broker import running_broker

from .direct_door import DirectDoor


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (Overloaded("full"), ("system_busy", 2, "full")),
        (InvalidRequest("no topic"), ("invalid_parameter", 29, "no topic")),
        (Refused(ResponseCode.NO_PERMISSION, "read only"), ("no_permission", 16, "read only")),
        (Refused(ResponseCode.NO_PERMISSION, "read only", "read_only"), ("read_only", 16, "read only")),
        (Refused(31_337, "?"), ("code_31337", 31_337, "?")),
    ],
)
def test_an_error_is_a_refusal(error: KeroloxError, refusal: tuple[str, int, str]) -> None:
    found = Refusal.of(error)
    assert (found.reason, found.code, found.text) == refusal
    answer = found.answer()
    assert (answer.reason, answer.code, answer.remark) == refusal


def test_the_reason_of_a_failed_authentication_stays_in_the_log() -> None:
    found = Refusal.of(NotKnown("no such user"))
    assert found.reason == "not_authenticated"
    assert "no such user" not in found.text


async def test_metrics_count_refusals_by_reason() -> None:
    async with running_broker(metrics_exporter="PROM", metrics_port=0) as running:
        caller = DirectDoor(running.broker).caller()
        assert (await caller.ask(31_337)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert (await caller.ask(RequestCode.SWITCH_TIMER_ENGINE)).code == 3
        assert (await caller.ask(RequestCode.GET_BROKER_CONFIG, age_s=60.0)).code == ResponseCode.SYSTEM_BUSY
        page = (await running.broker.figures.metrics.metrics()).text
    lines = [line for line in page.splitlines() if line.startswith("kerolox_requests_refused_total{")]
    counts = {line.split('reason="')[1].split('"')[0]: line.rsplit(" ", 1)[1] for line in lines}
    assert counts == {"not_supported": "2", "queued_too_long": "1"}
