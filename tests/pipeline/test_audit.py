"""Whole audits: of a store that is whole, one with every fault, and a broker's at work."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.client.messages import Message, Receipt
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.pipeline.audit.audit import Audit, audit
from kerolox.pipeline.audit.finding_kinds import DEAD_LETTERS, DUPLICATES, KINDS, OTHER
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.message import StoredMessage
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.queue.entry import SIMPLE
from kerolox.testing.threads import BrokerThread
from tests.broker.talk import send_fields
from tests.pipeline.audit_stores import BORN_MS, DONE, HALF, AuditStore
from tests.spark.store_maker import overwrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kerolox.pipeline.runner import OnSpark, Runner


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def whole(place: Path) -> AuditStore:
    """Nothing is wrong with it, though it has seen much: delays, retries, transactions that ended."""
    store = AuditStore(place / "whole")
    store.fill(300)
    store.now_ms += 150_000
    store.fill(77, "payments", queues=3)
    store.add("SCHEDULE_TOPIC_XXXX", DELAY="3", REAL_TOPIC="orders", unique_key="D" * 32)
    store.now_ms += 10_000
    store.add("orders", latency_ms=10_000, DELAY="3", unique_key="D" * 32)
    for times in (1, 2):
        store.add("%RETRY%billing", reconsume_times=times, RETRY_TOPIC="orders", unique_key=f"{5:032X}")
    for number in range(3):
        store.add(HALF, REAL_TOPIC="orders", PGROUP="pay", unique_key=f"T{number:031X}")
    store.add("orders", sys_flag=0x8, latency_ms=900, unique_key=f"T{0:031X}")
    store.add(DONE, b"0,1,", TAGS="d")
    # Asked for once, which is a copy, and then rolled back: kerolox notes the first one too, Apache does not.
    store.add(HALF, REAL_TOPIC="orders", PGROUP="pay", TRANSACTION_CHECK_TIMES="1", unique_key=f"T{2:031X}")
    store.add(DONE, b"3", TAGS="d")
    store.write()
    return store


@pytest.fixture(scope="module")
def broken(place: Path) -> tuple[AuditStore, dict[str, tuple[str, int]]]:
    """Every kind of fault once, and where."""
    store = AuditStore(place / "broken")
    store.fill(200, "orders")
    for _ in range(12):
        store.add("%DLQ%billing", reconsume_times=16, RETRY_TOPIC="orders", TAGS="a")
    again = store.add("orders", unique_key=f"{20:032X}")
    half = store.add(HALF, REAL_TOPIC="orders", PGROUP="pay", TRANSACTION_CHECK_TIMES="4")
    store.add(HALF, REAL_TOPIC="orders", PGROUP="pay")
    store.add(DONE, b"1,", TAGS="d")
    store.queues["orders", 0] += SIMPLE.blank * 2
    after = store.add("orders", unique_key="A" * 32)
    del store.queues["orders", 1][-60:]
    store.write()
    changed = store.messages[50]
    path, at = store.where(changed.physical_offset)
    overwrite(path, at + 90, b"!")
    overwrite(store.queue_file("orders", 1), 140, SIMPLE.pack(4711, 100, 5))
    assert again.queue_id == 0
    return store, {
        "body_checksum": store.where(changed.physical_offset),
        "wrong_queue_entries": (str(store.queue_file("orders", 1)), 140),
        "missing_queue_entries": (str(store.queue_file("orders", 1)), 97 * 20),
        "queue_gaps": store.where(after.physical_offset),
        "duplicates": store.where(store.messages[20].physical_offset),
        "open_half_messages": store.where(half.physical_offset),
        "dead_letters": store.where(store.messages[200].physical_offset),
    }


@pytest.fixture(scope="module")
def clean(runner: Runner, whole: AuditStore, place: Path) -> Audit:
    return audit(runner, [whole.root], place / "clean-report")


@pytest.fixture(scope="module")
def dirty(
    on_spark: OnSpark, broken: tuple[AuditStore, dict[str, tuple[str, int]]], whole: AuditStore, place: Path
) -> Audit:
    return audit(on_spark, [broken[0].root, whole.root], place / "report", topics=["orders"])


# --- a whole store ----------------------------------------------------------------------------------------


def test_a_whole_store_has_no_problems(clean: Audit, whole: AuditStore) -> None:
    assert clean.headline == f"No problems in {len(whole.messages)} messages"
    assert {kind.name: rows for kind in KINDS if (rows := clean.findings.problems(kind))} == {}
    assert (clean.bodies, clean.entries) == (len(whole.messages), len(whole.messages))
    assert (clean.halves, clean.queues) == (4, len(whole.queues))
    (retries,) = clean.findings.rows["retries"]
    assert (retries["note"], retries["messages"], retries["consumer_group"]) == (True, 2, "billing")


def test_rates_are_those_of_a_plain_count(clean: Audit, whole: AuditStore, place: Path) -> None:
    wanted: Counter[tuple[Any, ...]] = Counter()
    sizes: Counter[tuple[Any, ...]] = Counter()
    for message in whole.messages:
        key = (message.topic, message.tag or "", message.store_timestamp // 60_000)
        wanted[key] += 1
        sizes[key] += message.size
    rows = pq.read_table(place / "clean-report/tables/volume.parquet").to_pylist()
    found = {
        (row["topic"], row["tag"], int(row["minute"].timestamp()) // 60): (row["messages"], row["bytes"])
        for row in rows
    }
    assert found == {key: (wanted[key], sizes[key]) for key in wanted}
    by_topic = Counter(message.topic for message in whole.messages)
    assert {row["topic"]: row["messages"] for row in clean.topics} == by_topic
    assert clean.topics[0]["topic"] == "orders"
    busiest = Counter(each.store_timestamp // 60_000 for each in whole.messages if each.topic == "orders")
    assert clean.topics[0]["peak_messages"] == max(busiest.values())


def percentile(values: Sequence[int], share: float) -> int:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def sent_directly(message: StoredMessage) -> bool:
    return (
        message.topic in ("orders", "payments")
        and not message.sys_flag & 0xC
        and "DELAY" not in message.properties
    )


def test_latencies_are_those_of_a_plain_computation(clean: Audit, whole: AuditStore) -> None:
    assert [row["topic"] for row in clean.latency] == ["orders", "payments"]
    for row in clean.latency:
        values = [
            each.store_timestamp - each.born_timestamp
            for each in whole.messages
            if each.topic == row["topic"] and sent_directly(each)
        ]
        assert (row["messages"], row["least"], row["most"]) == (len(values), min(values), max(values))
        for share, name in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99_9")):
            assert row[name] == percentile(values, share), name
        assert row["mean"] == pytest.approx(sum(values) / len(values))
    minutes = {row["minute"]: row["messages"] for row in clean.latency_minutes}
    assert minutes == Counter(m.store_timestamp // 60_000 for m in whole.messages if sent_directly(m))


def test_sizes_are_those_of_a_plain_computation(clean: Audit, whole: AuditStore) -> None:
    for row in clean.sizes:
        values = [len(each.body) for each in whole.messages if each.topic == row["topic"]]
        assert (row["p50"], row["p99"], row["most"]) == (
            percentile(values, 0.5),
            percentile(values, 0.99),
            max(values),
        )
    steps = Counter(1 << (len(each.body) - 1).bit_length() for each in whole.messages)
    assert {row["up_to"]: row["messages"] for row in clean.size_steps if row["messages"]} == steps


# --- a store with every fault -----------------------------------------------------------------------------


def test_every_fault_is_found_with_file_and_place(
    dirty: Audit, broken: tuple[AuditStore, dict[str, tuple[str, int]]]
) -> None:
    found = {
        kind.name: (row["file"], row["file_offset"])
        for kind in KINDS
        for row in dirty.findings.problems(kind)
    }
    assert found == broken[1]
    assert dirty.headline.startswith("7 problems in ")


def test_a_duplicate_says_where_its_copies_are(dirty: Audit) -> None:
    (row,) = dirty.findings.problems(next(kind for kind in KINDS if kind.name == "duplicates"))
    # The whole store has a message of the same key at another place: a producer sent it to two brokers.
    assert (row["msg_id"], row["copies"]) == (f"{20:032X}", 2)
    assert len(row["places"]) == 3


def test_an_open_half_message_says_whose_it_is(dirty: Audit) -> None:
    (row,) = dirty.findings.rows["open_half_messages"]
    assert (row["topic"], row["producer_group"], row["checks"]) == ("orders", "pay", 4)
    assert row["age_s"] == (dirty.made_ms - int(row["stored"].timestamp() * 1000)) // 1000


def test_a_hot_spot_says_which_group_and_topic(dirty: Audit) -> None:
    (row,) = dirty.findings.rows["dead_letters"]
    assert (row["consumer_group"], row["topic"], row["messages"], row["tag"]) == (
        "billing",
        "orders",
        12,
        "a",
    )
    total = next(each["messages"] for each in dirty.topics if each["topic"] == "orders")
    assert row["share"] == pytest.approx(12 / total)


def test_tables_have_the_findings(dirty: Audit, place: Path) -> None:
    tables = place / "report" / "tables"
    for kind in KINDS:
        table = pq.read_table(tables / f"{kind.name}.parquet")
        assert table.schema.equals(kind.schema)
        assert [row["what"] for row in table.to_pylist()] == [
            row["what"] for row in dirty.findings.rows[kind.name]
        ]
    latency = pq.read_table(tables / "latency.parquet").to_pylist()
    assert latency == dirty.latency


def test_only_the_topic_asked_for_is_counted(dirty: Audit) -> None:
    assert [row["topic"] for row in dirty.topics] == ["orders"]


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_loads_nothing(dirty: Audit, clean: Audit, place: Path) -> None:
    for report, made in (("report", dirty), ("clean-report", clean)):
        text = (place / report / "report.html").read_text(encoding="utf-8")
        page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
        assert page.find(".//h1").text == made.headline  # type: ignore[union-attr]
        for element in page.iter():
            assert element.tag not in ("script", "link", "img", "iframe", "object", "embed")
            for name, value in element.attrib.items():
                assert name not in ("src", "srcset", "style", "onclick")
                assert name != "href" or value.startswith("#")
        assert "http" not in text
        assert "url(" not in text
        assert "@import" not in text
        assert "prefers-color-scheme:dark" in text
        targets = {element.attrib["id"] for element in page.iter() if "id" in element.attrib}
        assert {a.attrib["href"][1:] for a in page.iter("a")} <= targets
        assert len(page.findall(".//svg[@class='chart']")) >= 5


def test_the_page_names_every_finding(
    dirty: Audit, broken: tuple[AuditStore, dict[str, tuple[str, int]]], place: Path
) -> None:
    text = (place / "report" / "report.html").read_text(encoding="utf-8")
    for path, at in broken[1].values():
        assert path in text
        assert f"@ {at}<" in text


# --- stores in use, and the command -----------------------------------------------------------------------


def test_a_broker_may_be_at_work(
    runner: Runner,
    broker: BrokerThread,
    new_topic: Callable[..., str],
    send: Callable[[Sequence[Message]], list[Receipt]],
    tmp_path: Path,
) -> None:
    topic = new_topic(queues=2)
    send([Message(topic, b"%d" % number, tags="t") for number in range(100)])
    store = broker.cluster.brokers[0].broker.options.store_path
    made = audit(runner, [store], tmp_path / "report", topics=[topic])
    assert made.headline == "No problems in 100 messages"
    assert made.stores[0].unsettled


def bury(broker: BrokerThread, group: str, topic: str, receipts: Sequence[Receipt]) -> None:
    """What a consumer does that has tried a message often enough: it gives it back once more."""

    async def work() -> None:
        async with Dialer() as dialer:
            for receipt in receipts:
                properties = {"RETRY_TOPIC": topic, "UNIQ_KEY": receipt.msg_id}
                fields = send_fields(f"%RETRY%{group}", properties, reconsume_times=17)
                fields["born_timestamp"] = BORN_MS  # long ago, as that of a letter somebody looked after
                address = broker.cluster.brokers[0].address
                answer = await dialer.call(
                    address, RequestCode.SEND_MESSAGE_V2, SendRequestV2(**fields), b"body", timeout_s=10
                )
                assert answer.code == 0, answer.remark

    asyncio.run(work())


def test_dead_letters_that_were_sent_again_are_neither_duplicates_nor_late_nor_a_problem(
    runner: Runner,
    broker: BrokerThread,
    new_topic: Callable[..., str],
    send: Callable[[Sequence[Message]], list[Receipt]],
    tmp_path: Path,
) -> None:
    topic = new_topic(queues=1)
    group = f"gives-up-{topic}"
    receipts = send([Message(topic, b"%d" % number) for number in range(12)])
    bury(broker, group, topic, receipts)
    store = broker.cluster.brokers[0].broker.options.store_path
    before = audit(runner, [store], tmp_path / "before", topics=[topic])
    assert [row["consumer_group"] for row in before.findings.problems(DEAD_LETTERS)] == [group]

    def resend(*words: str) -> None:
        words = ("dlq", "resend", group, *words, "-n", broker.nameserver_address, "--rate", "0")
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output

    resend("--all")
    resend("--id", receipts[0].msg_id, "--again")
    made = audit(runner, [store], tmp_path / "after", topics=[topic])
    assert made.headline == "No problems in 25 messages"
    (dead,) = made.findings.notes(DEAD_LETTERS)
    assert (dead["messages"], dead["resent"]) == (12, 12)
    assert "all sent again since" in dead["what"]
    (note,) = [row["what"] for row in made.findings.notes(OTHER) if row["topic"] == topic]
    assert note.startswith("13 messages are copies made on purpose by kerolox dlq resend")
    (latency,) = made.latency
    assert (latency["messages"], latency["most"] < 3_600_000) == (12, True)
    assert sum(row["messages"] for row in made.latency_minutes) == 12


def test_copies_count_once_for_each_time_they_were_asked_for(runner: Runner, tmp_path: Path) -> None:
    store = AuditStore(tmp_path / "store")
    key = "E" * 32
    store.add("orders", unique_key=key)
    for replay in ("monday", "tuesday"):
        store.add("orders", unique_key=key, KEROLOX_REPLAY=replay, KEROLOX_REPLAY_FROM="orders/broker-a/0/0")
    store.add("orders", unique_key=key, KEROLOX_RESENT_FROM="0" * 32)
    store.write()
    made = audit(runner, [store.root], tmp_path / "one-each")
    assert made.headline == "No problems in 4 messages"
    told = [row["what"].split(",")[0] for row in made.findings.notes(OTHER)]
    assert told == [
        f"1 messages are copies made on purpose by kerolox {by}"
        for by in ("dlq resend", "replay monday", "replay tuesday")
    ]
    # Two runs at the same time, which did not see each other.
    store.add("orders", unique_key=key, KEROLOX_RESENT_FROM="0" * 32)
    store.add("orders", unique_key=key, KEROLOX_REPLAY="monday", KEROLOX_REPLAY_FROM="orders/broker-a/0/0")
    store.write()
    made = audit(runner, [store.root], tmp_path / "twice")
    assert [row["copies"] for row in made.findings.problems(DUPLICATES)] == [2, 2]


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["pipeline", "audit", *map(str, words)])
    return done.exit_code, done.stdout


def test_the_command_tells_by_its_exit_code_and_replaces_its_report(
    spark: SparkSession,
    broken: tuple[AuditStore, dict[str, tuple[str, int]]],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kerolox.spark.session.stop", lambda: None)
    store, to = broken[0].root, tmp_path / "report"
    since = broken[0].messages[190].store_timestamp
    code, text = run(store, "--to", to, "--json")
    assert code == 1
    assert (json.loads(text)["problems"], json.loads(text)["runner"]) == (7, "Spark local[2,2]")
    first = (to / "report.html").read_text(encoding="utf-8")
    code, text = run(store, "--to", to, "--since", since, "--until", since + 50, "--runner", "processes")
    assert code == 0
    assert "of this machine" in text
    assert "No problems in 5 messages" in text
    assert (to / "report.html").read_text(encoding="utf-8") != first
    assert [path.name for path in tmp_path.iterdir()] == ["report"]  # nothing is left beside it


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path, whole: AuditStore) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    done = CliRunner().invoke(app, ["pipeline", "audit", str(whole.root), "--to", str(other)])
    assert done.exit_code == 2
    assert "is not an audit report" in done.stderr
    assert (other / "precious").exists()
    done = CliRunner().invoke(app, ["pipeline", "audit", str(tmp_path), "--to", str(tmp_path / "report")])
    assert done.exit_code == 2
    assert "commit log" in done.stderr


def test_transactions_before_the_progress_of_the_broker_have_ended(runner: Runner, tmp_path: Path) -> None:
    without = AuditStore(tmp_path / "store")
    without.fill(100)
    without.add("orders", unique_key=f"{5:032X}")  # a duplicate
    for number in range(3):
        without.add(HALF, REAL_TOPIC="orders", PGROUP="pay", unique_key=f"T{number:031X}")
    without.add(DONE, b"0,1,2", TAGS="d")
    without.write()
    (without.root / "config").mkdir()
    group = "CID_RMQ_SYS_TRANS"
    offsets = {"offsetTable": {f"{HALF}@{group}": {"0": 3}}}
    (without.root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    made = audit(runner, [without.root], tmp_path / "report")
    assert (made.messages, made.halves, made.halves_young) == (105, 3, 0)
    assert [kind.name for kind in KINDS if made.findings.problems(kind)] == ["duplicates"]
    assert made.topics[0]["messages"] == 101


def test_what_killed_audits_left_is_removed_and_nothing_of_others(
    runner: Runner, whole: AuditStore, tmp_path: Path
) -> None:
    left, at_work, young, other = (
        tmp_path / name for name in (".report.1.work", ".report.2.work", ".report.3.work", ".report-2.1.work")
    )
    for folder in (left, at_work, young, other):
        folder.mkdir()
        (folder / "keys").touch()
    held = StoreLock(Files(), at_work)
    held.take()
    for folder in (left, at_work, other):
        os.utime(folder, (1, 1))
    try:
        audit(runner, [whole.root], tmp_path / "report", topics=["payments"])
    finally:
        held.release()
    assert {path.name for path in tmp_path.iterdir()} == {"report", at_work.name, young.name, other.name}


def test_an_unknown_topic_is_refused(runner: Runner, whole: AuditStore, tmp_path: Path) -> None:
    with pytest.raises(KeroloxError, match="no store has a topic 'nowhere'"):
        audit(runner, [whole.root], tmp_path / "report", topics=["nowhere"])
