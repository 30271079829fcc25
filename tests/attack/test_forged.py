"""Forged records and relayed requests, and that one that gets through is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.access.guard import Guard
from kerolox.broker.later import timer_delivery
from kerolox.broker.later.timer_sends import TimerSends
from kerolox.front.requests import Request
from kerolox.store.queue.named_records import NamedRecords

from .forged import FORMS, attack_records, ledger
from .relayed import RELAYED, attack_relays
from .story import Outcome


@pytest.mark.parametrize("in_ledger", [False, True])
async def test_forged_records_and_foreign_names_get_nothing(tmp_path: Path, in_ledger: bool) -> None:
    outcome = Outcome()
    await attack_records(tmp_path, outcome, **(ledger() if in_ledger else {}))
    assert outcome.violations == []
    assert outcome.attempts > 500


async def test_relayed_requests_bring_no_credentials(tmp_path: Path) -> None:
    outcome = Outcome()
    await attack_relays(tmp_path, outcome, codes=RELAYED)
    assert outcome.violations == []
    assert outcome.attempts > 10


async def test_a_store_that_believes_bytes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def believes(self: NamedRecords, offset: int) -> bytes:
        return self._log.record_at(offset)

    monkeypatch.setattr(NamedRecords, "record", believes)
    monkeypatch.setattr(NamedRecords, "hot", lambda self, offset: None)
    outcome = Outcome()
    await attack_records(tmp_path, outcome)
    for code in (
        "VIEW_MESSAGE_BY_ID",
        "CONSUMER_SEND_MSG_BACK",
        "END_TRANSACTION",
        "CONSUME_MESSAGE_DIRECTLY",
    ):
        for form in FORMS:
            assert any(text.startswith(form) and code in text for text in outcome.violations), (form, code)
    # Its commit is answered with success: another half message was ended in its place.
    assert any("did not arrive" in text for text in outcome.violations)


async def test_a_deletion_of_another_topic_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimerSends, "_check_deletion", lambda self, topic, key: None)
    monkeypatch.setattr(timer_delivery, "is_of_topic", lambda key, topic: True)
    outcome = Outcome()
    await attack_records(tmp_path, outcome)
    assert any("did not arrive" in text for text in outcome.violations)


async def test_a_reader_who_is_not_checked_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "check_reading", lambda self, request, topic, of_group=None: None)
    outcome = Outcome()
    await attack_records(tmp_path, outcome)
    assert any("shows the message" in text for text in outcome.violations)
    assert "a message of others was brought to the attacker" in outcome.violations


async def test_credentials_that_are_passed_on_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Request, "fields_to_relay", property(lambda self: dict(self.fields)))
    outcome = Outcome()
    await attack_relays(tmp_path, outcome, codes=())
    for code in ("GET_CONSUMER_RUNNING_INFO (307)", "CONSUME_MESSAGE_DIRECTLY (309)"):
        assert any(code in text and "Signature" in text for text in outcome.violations)
    assert any("is good for GET_BROKER_CONFIG" in text for text in outcome.violations)
