"""``kerolox dlq`` against a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.client.admin import dead_letters
from kerolox.client.admin.dead_letters import MARK, Resend
from kerolox.errors import RequestFailed, RequestTimeout
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.compression import compress
from kerolox.protocol.flags import COMPRESSED
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.record import decode_records
from tests.broker.talk import send_fields
from tests.cli.serving import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


def bury(cluster: Cluster, group: str, *bodies: str | bytes, **given: Any) -> None:
    """Make dead letters of a group, that came from the topic of the same name."""

    async def work() -> None:
        async with Dialer() as dialer:
            for number, body in enumerate(bodies):
                properties = {
                    "RETRY_TOPIC": f"of-{group}",
                    "KEYS": f"k{number}",
                    "TAGS": "A",
                    "colour": "red",
                    "ORIGIN_MESSAGE_ID": "0" * 32,
                    "RECONSUME_TIME": "17",
                    **given.get("properties", {}),
                }
                header = SendRequestV2(
                    **send_fields(
                        f"%RETRY%{group}",
                        {name: value for name, value in properties.items() if value},
                        reconsume_times=17,
                        flag=7,
                        sys_flag=given.get("sys_flag", 0),
                    )
                )
                data = body.encode() if isinstance(body, str) else body
                answer = await dialer.call(
                    cluster.running.address, RequestCode.SEND_MESSAGE_V2, header, data, timeout_s=10
                )
                assert answer.code == 0, answer.remark

    cluster.on_loop(work)
    if given.get("topic", True):
        cluster.ok("topic", "create", f"of-{group}", "--queues", "2")


def found(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = cluster.json("message", "find", topic)["messages"]
    return messages


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]


def test_list_tells_who_has_how_many_since_when(cluster: Cluster) -> None:
    bury(cluster, "listed", "one", "two", "three")
    (row,) = [row for row in cluster.json("dlq", "list") if row["group"] == "listed"]
    messages = cluster.json("dlq", "show", "listed")["messages"]
    assert row == {
        "group": "listed",
        "messages": 3,
        "oldest": messages[0]["storeTime"],
        "newest": messages[-1]["storeTime"],
        "brokers": ["broker-a"],
    }
    assert "listed" in cluster.ok("dlq", "list")


def test_show_tells_where_they_came_from(cluster: Cluster) -> None:
    bury(cluster, "shown", "one", b"\x1b[2J\x00two", "three")
    whole = cluster.json("dlq", "show", "%DLQ%shown")
    assert (whole["total"], whole["complete"], whole["cut"]) == (3, True, None)
    first = whole["messages"][0]
    assert (first["originTopic"], first["topic"], first["reconsumeTimes"]) == ("of-shown", "%DLQ%shown", 17)
    assert (first["body"], first["keys"], first["tag"]) == ("one", ["k0"], "A")
    out = cluster.ok("dlq", "show", "shown")
    assert "of-shown" in out
    assert "\x1b" not in out
    out, errors = cluster.run("dlq", "show", "shown", "--max", "2", "--json")
    assert texts(json.loads(out)["messages"]) == ["one", "\x1b[2J\x00two"]
    assert json.loads(out)["complete"] is False
    assert "truncated: the first 2 of 3" in errors
    assert texts(cluster.json("dlq", "show", "shown", "--key", "k2")["messages"]) == ["three"]
    assert texts(cluster.json("dlq", "show", "shown", "--id", first["messageId"])["messages"]) == ["one"]
    assert texts(cluster.json("dlq", "show", "shown", "--id", first["offsetMessageId"])["messages"]) == [
        "one"
    ]


def test_show_tells_the_reason(cluster: Cluster) -> None:
    bury(cluster, "reasoned", "one", properties={"KEROLOX_RETRY_REASON": "no stock\x1b[2J"})
    bury(cluster, "reasoned", "two", topic=False)
    first, second = cluster.json("dlq", "show", "reasoned")["messages"]
    assert (first["reason"], second["reason"]) == ("no stock\x1b[2J", None)
    out = cluster.ok("dlq", "show", "reasoned")
    assert "no stock" in out
    assert "\x1b" not in out
    cluster.ok("dlq", "resend", "reasoned", "--all")
    assert all("KEROLOX_RETRY_REASON" not in copy["properties"] for copy in found(cluster, "of-reasoned"))


def test_times_reach_exactly_so_far(cluster: Cluster) -> None:
    import time

    for body in ("one", "two", "three"):
        bury(cluster, "timed", body, topic=False)
        time.sleep(0.005)
    stored = [m["storeTime"] for m in cluster.json("dlq", "show", "timed")["messages"]]

    def between(begin: int, end: int) -> list[str]:
        shown = cluster.json("dlq", "show", "timed", "--from", str(begin), "--to", str(end))
        assert shown["total"] == len(shown["messages"])
        return texts(shown["messages"])

    assert between(stored[0], stored[2]) == ["one", "two", "three"]
    assert between(stored[0] + 1, stored[2] - 1) == ["two"]
    assert between(stored[1], stored[1]) == ["two"]
    for begin, end in ((stored[2] + 1, stored[2] + 1000), (1, stored[0] - 1)):
        said = cluster.error("dlq", "show", "timed", "--from", str(begin), "--to", str(end))
        assert f"no dead letter that matches --from {begin} --to {end}" in said


def test_resend_sends_what_the_message_is_and_counts_attempts_anew(cluster: Cluster) -> None:
    body = compress(b"hello " * 100)
    bury(cluster, "back", body, sys_flag=COMPRESSED)
    (dead,) = cluster.json("dlq", "show", "back")["messages"]
    result = cluster.json("dlq", "resend", "back", "--all")
    assert result == {
        "group": "back",
        "dryRun": False,
        "total": 1,
        "resent": 1,
        "passedOver": 0,
        "complete": True,
        "stopped": None,
        "stoppedAt": None,
    }
    (copy,) = found(cluster, "of-back")
    assert (copy["body"], copy["reconsumeTimes"]) == ("hello " * 100, 0)
    assert (copy["messageId"], copy["bornTime"]) == (dead["messageId"], dead["bornTime"])
    assert copy["properties"] == {
        "KEYS": "k0",
        "TAGS": "A",
        "colour": "red",
        "UNIQ_KEY": dead["messageId"],
        "WAIT": "true",
        MARK: dead["offsetMessageId"],
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }


def test_a_second_run_sends_only_what_the_first_has_not(cluster: Cluster) -> None:
    bury(cluster, "twice", *"abcdef")
    assert cluster.json("dlq", "resend", "twice", "--key", "k3")["resent"] == 1
    dry = cluster.json("dlq", "resend", "twice", "--all", "--dry-run")
    assert (dry["dryRun"], dry["total"], dry["resent"], dry["passedOver"]) == (True, 6, 5, 1)
    assert texts(found(cluster, "of-twice")) == ["d"]
    assert cluster.json("dlq", "show", "twice", "--marks")["messages"][3]["resent"] is True
    assert cluster.json("dlq", "show", "twice", "--marks")["messages"][4]["resent"] is False
    whole = cluster.json("dlq", "resend", "twice", "--all")
    assert (whole["resent"], whole["passedOver"]) == (5, 1)
    assert sorted(texts(found(cluster, "of-twice"))) == list("abcdef")
    whole = cluster.json("dlq", "resend", "twice", "--all")
    assert (whole["resent"], whole["passedOver"], whole["complete"]) == (0, 6, True)
    (dead, *_) = cluster.json("dlq", "show", "twice")["messages"]
    again = cluster.json("dlq", "resend", "twice", "--id", dead["messageId"], "--again")
    assert again["resent"] == 1
    assert sorted(texts(found(cluster, "of-twice"))) == list("aabcdef")


def test_resend_to_the_retry_topic_or_another(cluster: Cluster) -> None:
    bury(cluster, "elsewhere", "one")
    assert cluster.json("dlq", "resend", "elsewhere", "--all", "--to-retry")["resent"] == 1
    (copy,) = found(cluster, "%RETRY%elsewhere")
    assert (copy["reconsumeTimes"], copy["properties"]["RETRY_TOPIC"]) == (0, "of-elsewhere")
    assert copy["properties"]["ORIGIN_MESSAGE_ID"] == "0" * 32
    assert cluster.json("dlq", "resend", "elsewhere", "--all", "--to-retry")["resent"] == 0
    cluster.ok("topic", "create", "other")
    assert cluster.json("dlq", "resend", "elsewhere", "--all", "--to-topic", "other")["resent"] == 1
    assert texts(found(cluster, "other")) == ["one"]


def test_a_group_that_consumes_in_order_is_not_sent_its_dead_letters_by_its_retry_topic(
    cluster: Cluster,
) -> None:
    bury(cluster, "ordered", "one", "two")

    async def lock() -> None:
        cluster.running.broker.membership.queue_locks.lock(
            "ordered", "c", [MessageQueue("of-ordered", "broker-a", 0)]
        )

    cluster.on_loop(lock)
    out, errors = cluster.run("dlq", "resend", "ordered", "--all", "--to-retry", "--json", fails=True)
    assert "consumes in order" in errors
    assert json.loads(out)["complete"] is False
    assert cluster.json("dlq", "resend", "ordered", "--all")["resent"] >= 2


def test_what_to_send_must_be_said(cluster: Cluster) -> None:
    bury(cluster, "said", "one", properties={"RETRY_TOPIC": ""})
    assert "--id, --key, --from, --to or --all" in cluster.error("dlq", "resend", "said")
    assert "either" in cluster.error("dlq", "resend", "said", "--all", "--to-retry", "--to-topic", "x")
    assert "either" in cluster.error("dlq", "resend", "said", "--id", "x", "--key", "y")
    assert "no message" in cluster.error("dlq", "resend", "said", "--id", "x")
    _, errors = cluster.run("dlq", "resend", "said", "--all", fails=True)
    assert "is unknown. Name a target" in errors
    assert "group 'nobody' does not exist" in cluster.error("dlq", "resend", "nobody", "--all")


def test_the_rate_is_kept(cluster: Cluster) -> None:
    import time

    bury(cluster, "slow", *"abcdef")
    began = time.monotonic()
    assert cluster.json("dlq", "resend", "slow", "--all", "--rate", "20")["resent"] == 6
    assert time.monotonic() - began >= 5 / 20


def test_an_error_tells_how_far_it_came_and_how_to_go_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(cluster, "broken", *"abcdef")
    send_to = Resend._send_to

    async def failing(self: Resend, topic: str, message: Any, queue: Any) -> Any:
        if message.queue_offset == 3:
            raise RequestFailed(ResponseCode.SERVICE_NOT_AVAILABLE, "full", address="broker-a")
        return await send_to(self, topic, message, queue)

    monkeypatch.setattr(Resend, "_send_to", failing)
    out, errors = cluster.run("dlq", "resend", "broken", "--all", "--json", fails=True)
    result = json.loads(out)
    assert (result["total"], result["resent"], result["complete"]) == (6, 3, False)
    assert result["stoppedAt"] == "broker-a/0@3"
    assert "stopped at broker-a/0@3" in errors
    assert "3 of 6 were done" in errors
    assert "Run the same command again" in errors
    monkeypatch.undo()
    result = cluster.json("dlq", "resend", "broken", "--all")
    assert (result["resent"], result["passedOver"]) == (3, 3)
    assert sorted(texts(found(cluster, "of-broken"))) == list("abcdef")


def test_an_answer_that_is_lost_does_not_double_the_message(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(cluster, "lost", "one", "two")
    send_to = Resend._send_to
    lost: list[str] = []

    async def losing(self: Resend, topic: str, message: Any, queue: Any) -> Any:
        answer = await send_to(self, topic, message, queue)
        if not lost:
            lost.append(message.offset_id)
            raise RequestTimeout("broker-a", "SEND_MESSAGE_V2", 5.0)
        return answer

    monkeypatch.setattr(Resend, "_send_to", losing)
    assert cluster.json("dlq", "resend", "lost", "--all")["resent"] == 2
    assert lost
    assert sorted(texts(found(cluster, "of-lost"))) == ["one", "two"]


def test_interrupted_by_hand(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(cluster, "hand", *"abcd")
    send_to = Resend._send_to

    async def interrupted(self: Resend, topic: str, message: Any, queue: Any) -> Any:
        if self.resent == 2:
            raise KeyboardInterrupt
        return await send_to(self, topic, message, queue)

    monkeypatch.setattr(Resend, "_send_to", interrupted)
    _, errors = cluster.run("dlq", "resend", "hand", "--all", fails=True)
    assert "interrupted. 2 of 4 were done" in errors


def test_export(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(cluster, "kept", "one", b"\xff\x00", "three")
    lines, raw = tmp_path / "kept.jsonl", tmp_path / "kept.raw"
    _, errors = cluster.run("dlq", "export", "kept", "--out", str(lines))
    assert "3 of 3 written" in errors
    documents = [json.loads(line) for line in lines.read_text().splitlines()]
    assert documents == cluster.json("dlq", "show", "kept")["messages"]
    assert cluster.ok("dlq", "export", "kept") == lines.read_text()
    cluster.ok("dlq", "export", "kept", "--out", str(raw), "--raw")
    records = decode_records(raw.read_bytes())
    assert [record.body for record in records] == [b"one", b"\xff\x00", b"three"]
    for record in records:

        async def stored(place: int = record.physical_offset) -> bytes:
            return await cluster.running.broker.store.message_at(place)

        at = sum(r.size for r in records if r.physical_offset < record.physical_offset)
        assert raw.read_bytes()[at : at + record.size] == cluster.on_loop(stored)
    assert "a file that does not exist" in cluster.error("dlq", "export", "kept", "--out", str(raw))
    missing = tmp_path / "missing"
    assert "group 'nobody' does not exist" in cluster.error("dlq", "export", "nobody", "--out", str(missing))
    assert not missing.exists()

    pull = dead_letters.Lookups.pull

    async def failing(self: Any, topic: str, queue: Any, offset: int, **more: Any) -> Any:
        if offset == 2:
            raise RequestFailed(ResponseCode.SYSTEM_ERROR, "broken", address="broker-a")
        return await pull(self, topic, queue, offset, **{"count_max": 1, **more})

    monkeypatch.setattr(dead_letters.Lookups, "pull", failing)
    part = tmp_path / "part"
    _, errors = cluster.run("dlq", "export", "kept", "--out", str(part), fails=True)
    assert "2 of 3 were written" in errors
    assert f"--from {documents[1]['storeTime']}" in errors
    assert len(part.read_text().splitlines()) == 2


def test_every_help_has_an_example(cluster: Cluster) -> None:
    for command in ("list", "show", "resend", "export"):
        assert f"Example: kerolox dlq {command}" in " ".join(cluster.ok("dlq", command, "--help").split())
