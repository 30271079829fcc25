"""``kerolox send``, ``message`` and ``tail`` against a broker."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox.cli import progress
from kerolox.cli.send import _spans
from kerolox.client.admin import lookups
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import OptionError
from kerolox.times import parse_span, parse_time, time_text
from tests.cli.serving import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


def bodies(found: object) -> list[str]:
    return [message["body"] for message in found["messages"]]  # type: ignore[index]


def test_bodies_that_inflate_to_much(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 bodies of 60 MiB once took 2.9 GB: what does not fit is shown as stored, with the reason."""
    monkeypatch.setattr("kerolox.cli.messages.INFLATED_BLOCK_BYTES_MAX", 1 << 20)
    monkeypatch.setattr("kerolox.cli.messages.INFLATED_BODY_BYTES_MAX", 2 << 20)
    monkeypatch.setattr("kerolox.cli.messages.MEASURED_BYTES", 700_000)
    sizes = (600_000, 900_000, 300_000, 10)
    cluster.json("send", "bombs", *("x" * size for size in sizes), "--key", "k")
    found = cluster.json("message", "find", "bombs", "--key", "k")["messages"]
    assert [len(one.get("body", "")) for one in found] == [600_000, 0, 300_000, 10]
    assert "INFLATED_BLOCK_BYTES_MAX" in found[1]["bodyError"]
    assert len(zlib.decompress(base64.b64decode(found[1]["bodyBase64"]))) == 900_000
    shown = cluster.ok("message", "find", "bombs", "--key", "k")
    assert "(600000 bytes)" in shown
    assert "bytes, compressed)" in shown


def test_arguments(cluster: Cluster) -> None:
    result = cluster.json(
        "send", "args", "one", "two", "--tag", "x", "--key", "k1", "--key", "k2", "-p", "a=b"
    )
    assert (result["sent"], result["failed"]) == (2, 0)
    assert [row["status"] for row in result["first"]] == ["SEND_OK", "SEND_OK"]
    found = cluster.json("message", "find", "args", "--key", "k2")
    assert (bodies(found), found["complete"]) == (["one", "two"], True)
    message = found["messages"][0]
    assert (message["tag"], message["keys"], message["properties"]["a"]) == ("x", ["k1", "k2"], "b")
    assert message["messageId"] == result["first"][0]["messageId"]


def test_lines_keep_their_order(cluster: Cluster, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(300)]
    cluster.ok("topic", "create", "lines", "--queues", "1")
    out, errors = cluster.run("send", "lines", stdin="\n".join(lines) + "\n\n")
    assert "300 sent, the first 20 shown" in errors
    assert len(out.splitlines()) == 22
    assert bodies(cluster.json("message", "find", "lines", "--max", "1000")) == lines
    file = tmp_path / "lines.txt"
    file.write_text("from a file\r\nsecond")
    cluster.ok("send", "lines", "--file", str(file))
    cluster.ok("send", "lines", "--file", str(file), "--whole")
    found = cluster.json("message", "find", "lines", "--max", "1000")
    assert bodies(found)[300:] == ["from a file", "second", "from a file\r\nsecond"]


def test_progress_is_told_with_how_much_of_the_file_is_done(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINES_EVERY_S", 0.0)
    cluster.ok("topic", "create", "long", "--queues", "1")
    file = tmp_path / "lines.txt"
    file.write_text("0123456789\n" * 200)
    _, errors = cluster.run("send", "long", "--file", str(file))
    told = [line for line in errors.splitlines() if "% of the file" in line]
    assert len(told) == 200
    assert told[-1].endswith("100% of the file")
    assert "50% of the file" in told[99]


def test_a_new_topic_takes_all_from_the_first_on(cluster: Cluster) -> None:
    """Its route is that of the template at first, which may have more queues."""
    told = cluster.json("send", "brand-new", *map(str, range(40)))
    assert (told["sent"], told["failed"]) == (40, 0)


def test_what_cannot_be_sent(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ok("topic", "create", "closed", "--perm", "4")
    assert "none of its queues may be written" in cluster.error("send", "closed", "x")
    assert "--property = 'nonsense'" in cluster.error("send", "args", "x", "-p", "nonsense")
    assert "missing" in cluster.error("send", "args", "--file", str(tmp_path / "missing"))
    out, errors = cluster.run("send", "args", "ok", "--property", "TAGS=x", "--json", fails=True)
    assert json.loads(out)["failed"] == 1
    assert "kerolox: 1 not sent (message 1): property 'TAGS' is reserved" in errors


def test_the_first_that_fails_ends_it_and_is_named(cluster: Cluster, tmp_path: Path) -> None:
    lines = [str(number) for number in range(1, 201)]
    lines[2] = "x" * ((4 << 20) + 1)  # one byte too large
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(lines))
    cluster.ok("topic", "create", "ended", "--queues", "1")
    out, errors = cluster.run("send", "ended", "--file", str(file), "--json", fails=True)
    told = json.loads(out)
    following = told["notTriedFrom"]
    assert (told["failed"], told["failedNumbers"]) == (1, [3])
    assert 4 <= following <= 3 + 64
    assert "1 not sent (line 3): " in errors
    assert f"Stopped: line {following} and later were not sent" in errors
    sent = [line for number, line in enumerate(lines, 1) if number < following and number != 3]
    assert told["sent"] == len(sent)
    assert bodies(cluster.json("message", "find", "ended", "--max", "1000")) == sent
    # As told, the rest.
    rest = "\n".join(lines[following - 1 :])
    assert cluster.json("send", "ended", stdin=rest)["sent"] == 200 - following + 1


def test_delays(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "later")
    due_ms = SYSTEM_CLOCK.wall_ms() // 1000 * 1000 + 7_200_000
    cluster.ok("send", "later", "a", "--deliver-at", time_text(due_ms))
    cluster.ok("send", "later", "b", "--delay", "1h30m")
    cluster.ok("send", "later", "c", "--delay-level", "18")
    first, second = cluster.json("message", "find", "rmq_sys_wheel_timer")["messages"]
    assert first["properties"]["TIMER_DELIVER_MS"] == str(due_ms)
    assert second["properties"]["TIMER_DELAY_MS"] == "5400000"
    (third,) = cluster.json("message", "find", "SCHEDULE_TOPIC_XXXX")["messages"]
    assert third["properties"]["REAL_TOPIC"] == "later"
    told = cluster.error("send", "later", "c", "--delay", "1m", "--delay-level", "3")
    assert "only one of --delay-level" in told
    assert "--delay" in cluster.error("send", "later", "c", "--deliver-at", "2h")
    assert "500ms, 90s" in cluster.error("send", "later", "c", "--delay", "soon")
    assert len(cluster.json("message", "find", "rmq_sys_wheel_timer")["messages"]) == 2


def test_what_has_the_same_order_key_stays_in_order(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "ordered", "--queues", "8")
    bodies_sent = [str(number) for number in range(20)]
    cluster.ok("send", "ordered", *bodies_sent, "--order-key", "customer-7")
    found = cluster.json("message", "find", "ordered")
    assert bodies(found) == bodies_sent
    assert len({message["queueId"] for message in found["messages"]}) == 1
    assert "either --queue or --order-key" in cluster.error(
        "send", "ordered", "x", "--queue", "1", "--order-key", "k"
    )


def test_numbers_for_people() -> None:
    assert _spans([3]) == "3"
    assert _spans([1, 3, 4, 5, 9, 10]) == "1, 3-5, 9-10"


def test_get_by_both_ids(cluster: Cluster) -> None:
    cluster.ok("send", "ids", "here I am")
    (message,) = cluster.json("message", "find", "ids")["messages"]
    by_key = cluster.json("message", "get", message["messageId"], "--topic", "ids")
    by_place = cluster.json("message", "get", message["offsetMessageId"])
    assert by_key == message
    assert by_place == {**message, "broker": None}
    assert "here I am" in cluster.ok("message", "get", message["offsetMessageId"])
    assert cluster.json("message", "get", message["messageId"]) == message  # in whatever topic it is
    assert "--topic" in cluster.error("message", "get", message["messageId"][:-1] + "G")
    assert "no message" in cluster.error("message", "get", "nonsense", "--topic", "ids")
    cluster.ok("send", "ids", "a", "--key", "one-of-a-kind")
    assert cluster.json("message", "get", "one-of-a-kind", "--topic", "ids")["body"] == "a"
    cluster.ok("send", "ids", "b", "c", "--key", "twice")
    told = cluster.error("message", "get", "twice", "--topic", "ids")
    assert "the key of 2 messages" in told
    assert "kerolox message find ids --key twice" in told
    beyond = message["offsetMessageId"][:-16] + "00000000FFFFFFFF"
    assert "it has no message at offset 4294967295" in cluster.error("message", "get", beyond)
    nowhere = "7F000001" + "00000001" + "0" * 16  # port 1
    assert "broker 127.0.0.1:1: the broker is unreachable" in cluster.error("message", "get", nowhere)


def test_find_says_when_there_is_more(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.ok("topic", "create", "much", "--queues", "2")
    cluster.ok("send", "much", *map(str, range(10)), "--key", "k")
    whole = cluster.json("message", "find", "much", "--from", "1h", "--to", "now")
    assert (len(whole["messages"]), whole["complete"], whole["cut"]) == (10, True, None)
    out, errors = cluster.run("message", "find", "much", "--max", "4", "--json")
    assert bodies(json.loads(out)) == ["0", "1", "2", "3"]
    assert json.loads(out)["complete"] is False
    assert "truncated: the first 4 of more" in errors
    out, errors = cluster.run("message", "find", "much", "--key", "k", "--max", "4")
    assert "truncated: the first 4 of 10" in errors
    monkeypatch.setattr(lookups, "COUNT_MAX", 5)
    out, errors = cluster.run("message", "find", "much", "--key", "k", "--json")
    assert len(json.loads(out)["messages"]) == 5
    assert "narrow the time" in errors
    assert "--key k --to 1h" in cluster.error("message", "find", "much", "--key", "k", "--to", "1h")


def test_binary_bodies(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\x00\n\x01")
    cluster.ok("send", "binary", "--file", str(file), "--whole")
    (message,) = cluster.json("message", "find", "binary")["messages"]
    assert message["bodyBase64"] == "/wAKAQ=="
    assert r"\xff" in cluster.ok("message", "find", "binary")


def test_tail_shows_what_there_is_and_what_comes(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "news", "--queues", "2")
    cluster.ok("send", "news", "a", "b", "--tag", "x")
    cluster.ok("send", "news", "c", "--tag", "y")
    out, errors = cluster.run("tail", "news", "--from", "0", "--count", "3")
    assert sorted(line.split()[-1] for line in out.splitlines()) == ["a", "b", "c"]
    assert "following 2 queues" in errors
    out = cluster.ok("tail", "news", "--from", "1h", "--tags", "y", "--count", "1", "--json")
    assert json.loads(out)["body"] == "c"

    async def send_soon() -> None:
        async def send() -> None:
            while True:
                await broker.store.put("news", 0, b"live")
                await asyncio.sleep(0.05)

        tasks.append(asyncio.create_task(send()))

    import asyncio

    tasks: list[asyncio.Task[None]] = []
    broker = cluster.running.broker
    cluster.on_loop(send_soon)
    try:
        assert cluster.ok("tail", "news", "--count", "2").count("live") == 2
    finally:

        async def stop() -> None:
            tasks[0].cancel()

        cluster.on_loop(stop)
    assert "names no tag" in cluster.error("tail", "news", "--tags", "||")


def test_times() -> None:
    now_ms = 1_700_000_000_000
    assert parse_time("now", now_ms) == now_ms
    assert parse_time("90s", now_ms) == now_ms - 90_000
    assert parse_time("2h ago", now_ms) == now_ms - 7_200_000
    assert parse_time("3d", now_ms) == now_ms - 3 * 86_400_000
    assert parse_time("1600000000000", now_ms) == 1_600_000_000_000
    assert parse_time("2023-11-14T22:13:20+00:00", now_ms) == now_ms
    assert parse_time(time_text(now_ms), 0) == now_ms
    assert parse_span("500ms", "--delay") == 0.5
    assert parse_span("1h30m", "--delay") == 5400
    assert parse_span("0", "--delay") == 0
    for wrong in ("", "soon", "5 parsecs", "-3", "nan", "inf", "1h soon", "90"):
        with pytest.raises(OptionError):
            parse_span(wrong, "--delay")
    with pytest.raises(OptionError, match="with a unit: 90s"):
        parse_span("90", "--delay")
    assert (time_text(None), time_text(0), time_text(-1)) == ("", "", "")
    assert time_text(1 << 62) == str(1 << 62)
    for wrong in ("", "soon", "5 parsecs", "2023-13-01"):
        with pytest.raises(OptionError):
            parse_time(wrong, now_ms)


def test_tail_by_condition(cluster: Cluster) -> None:
    cluster.running.broker.options.property_filter = True
    cluster.ok("send", "numbers", "small", "--property", "n=1")
    cluster.ok("send", "numbers", "large", "--property", "n=7")
    out = cluster.ok("tail", "numbers", "--from", "0", "--sql", "n > 5", "--count", "1", "--json")
    assert json.loads(out)["body"] == "large"
    error = cluster.error("tail", "numbers", "--sql", "n >")
    assert "line 1, column 4" in error
    assert "either --tags or --sql" in cluster.error("tail", "numbers", "--sql", "n > 5", "--tags", "a")
