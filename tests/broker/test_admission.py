"""Every way in keeps the same rules: a single send, a batch, and a run of plain sends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kerolox.broker
from kerolox.broker.write.admission import REWRITTEN, STOPS, is_plain
from kerolox.protocol import reserved
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.codes import ResponseCode
from tests.broker.test_sends import talking

KEY = {"UNIQ_KEY": "7F000001162E18B4AAC28E2F6D2A0001"}
SOURCES = {path.name: path.read_text() for path in Path(kerolox.broker.__file__).parent.rglob("*.py")}


@pytest.mark.parametrize(
    ("rule", "home"),
    [
        (r"Sending message to topic\[", "admission.py"),
        (r"BrokerRole\.SLAVE", "leadership.py"),
        (r"\[REJECTREQUEST\]this broker follows", "admission.py"),
        (r"stalled_ms >", "admission.py"),
        (r"broker unable to service", "admission.py"),
        (r"request queueId\[", "admission.py"),
        (r"\.wait_safe\(", None),
        (r"FlushMode", None),
    ],
)
def test_a_rule_stands_in_one_place(rule: str, home: str | None) -> None:
    found = [name for name, text in SOURCES.items() if re.search(rule, text)]
    assert found == ([home] if home else [])


async def test_closed_topics_are_closed_to_every_way_in() -> None:
    async with talking() as talk:
        for topic in [*sorted(reserved.NOT_FOR_SENDING), reserved.TIMER_TOPIC, "rmq_sys_REVIVE_LOG_c"]:
            # By letters a run might take it; by names, in a batch and with a delay the handlers do.
            answers = [
                await talk.send(topic, properties=KEY),
                await talk.send_v1(topic, properties=KEY),
                await talk.send(topic, properties={**KEY, "DELAY": "1"}),
                await talk.send_batch(topic, encode_batch([(0, b"hello", b"")])),
            ]
            assert {answer.code for answer in answers} == {ResponseCode.NO_PERMISSION}, topic


async def test_a_broker_that_follows_takes_no_runs_and_takes_them_again() -> None:
    async with talking() as talk:
        assert (await talk.send("T", properties=KEY)).code == 0
        talk.running.broker.leadership.follow("another one leads")
        assert not talk.running.broker.write_path.admission.takes_runs
        assert (await talk.send("T", properties=KEY)).code == ResponseCode.SYSTEM_BUSY
        talk.running.broker.leadership.lead()
        assert (await talk.send("T", properties=KEY)).code == 0


@pytest.mark.parametrize("word", STOPS)
def test_runs_stop_at_whatever_is_not_plain(word: bytes) -> None:
    assert is_plain("T", word) == (word not in REWRITTEN)
