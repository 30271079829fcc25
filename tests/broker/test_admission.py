"""Every way in keeps the same rules: a single send, a batch, and a run of plain sends."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
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
        (r"\[REJECTREQUEST\]system busy.*this broker follows", "admission.py"),
        (r"stalled_ms >", "admission.py"),
        (r"broker unable to service", "admission.py"),
        (r"in-sync replicas not enough", "admission.py"),
        (r"request queueId\[", "admission.py"),
        (r"LMQ_CONSUME_QUEUE_NUM_EXCEEDED", "admission.py"),
        (r"\blog\.(append|append_batch|append_sends|append_raw|write|cursor)\b", "intake.py"),
        (r"acks\.(when_safe|safe)\(", "intake.py"),
        (r"\.wait_safe\(|\bflush_mode\b|FlushMode", None),
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
        await talk.running.broker.leadership.follow("another one leads")
        assert not talk.running.broker.write_path.admission.takes_runs
        assert (await talk.send("T", properties=KEY)).code == ResponseCode.SYSTEM_BUSY
        await talk.running.broker.leadership.lead()
        assert (await talk.send("T", properties=KEY)).code == 0


async def test_what_runs_know_is_forgotten_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking() as talk:
        broker = talk.running.broker
        targets = broker.write_path.targets

        async def known() -> bool:
            for topic in ("T", "U"):
                for _ in range(2):
                    assert (await talk.send(topic, properties=KEY)).code == 0
            return targets.of(None).keys() >= {b"T", b"U"}

        assert await known()
        topics = broker.tables.topics
        config = topics.find("T")
        assert config is not None
        topics.put(msgspec.structs.replace(config, write_queue_nums=1, read_queue_nums=1))
        assert targets.of(None).keys() == {b"U"}
        await topics.unsaved.all_saved()
        assert (await talk.send("T", properties=KEY, queue_id=3)).code == ResponseCode.INVALID_PARAMETER
        assert await known()
        broker.options_changed({})
        assert targets.of(None) == {}
        assert await known()
        monkeypatch.setattr("kerolox.broker.write.targets.TARGETS_MAX", 2)
        assert (await talk.send("V", properties=KEY)).code == 0
        assert (await talk.send("V", properties=KEY)).code == 0
        assert targets.of(None).keys() == {b"V"}


@pytest.mark.parametrize("word", STOPS)
def test_runs_stop_at_whatever_is_not_plain(word: bytes) -> None:
    assert is_plain("T", word) == (word not in REWRITTEN)
