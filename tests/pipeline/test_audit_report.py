"""The page of an audit: what it says, and that nothing in a message can change it."""

from __future__ import annotations

from xml.etree import ElementTree

import pyarrow as pa
import pytest

from kerolox.pipeline.audit import finding_kinds as kinds
from kerolox.pipeline.audit import traffic
from kerolox.pipeline.audit.audit import Audit
from kerolox.pipeline.audit.finding_kinds import Findings
from kerolox.pipeline.audit.findings import duration
from kerolox.pipeline.audit.report import ROWS_SHOWN, page, steps
from kerolox.sizes import size_text


def made(**what: object) -> Audit:
    return Audit([], Findings(), 1_700_000_000_000, **what)  # type: ignore[arg-type]


def read(audit: Audit) -> ElementTree.Element:
    return ElementTree.fromstring(page(audit).removeprefix("<!DOCTYPE html>\n"))


def test_an_empty_audit_has_a_page() -> None:
    text = "".join(read(made()).itertext())
    assert "No problems in 0 messages" in text
    assert "Every check below passed." in text


@pytest.mark.parametrize(
    ("problems", "messages", "headline"),
    [(0, 1, "No problems in 1 message"), (1, 2, "1 problem in 2 messages"),
     (3, 1_204_331, "3 problems in 1,204,331 messages")],
)  # fmt: skip
def test_the_headline(problems: int, messages: int, headline: str) -> None:
    audit = made(messages=messages)
    for number in range(problems):
        audit.findings.add(kinds.GAPS, what=f"gap {number}")
    audit.findings.add(kinds.OTHER, note=True, what="worth knowing")
    assert audit.headline == headline
    assert read(audit).find(".//h1").text == headline  # type: ignore[union-attr]


def test_many_findings_are_counted_and_the_first_shown() -> None:
    audit = made(messages=9000)
    for number in range(200):
        audit.findings.add(kinds.DUPLICATES, topic="t", what=f"message {number} was seen twice")
    text = "".join(read(audit).itertext())
    assert text.count("was seen twice") == ROWS_SHOWN
    assert f"The first {ROWS_SHOWN} of 200. All are in tables/duplicates.parquet." in text


def test_what_is_more_than_a_table_holds_is_still_counted() -> None:
    found = Findings(rows_max=2)
    for _ in range(5):
        found.add(kinds.GAPS, what="gap")
    assert (found.count(kinds.GAPS), len(found.table(kinds.GAPS)), found.problem_count) == (5, 2, 5)


def test_words_from_messages_stay_words() -> None:
    evil = "<img src=x onerror=alert(1)> \x01\x02 & \ufffe \ud800"
    audit = made(messages=1, topics_wanted=[evil])
    audit.findings.add(kinds.BODY_CHECKSUM, topic=evil, queue_id=1, what=evil, file=evil, file_offset=3)
    audit.topics = [
        {"topic": evil, "messages": 1, "bytes": 10, "peak_messages": 1, "peak_minute": 28_333_333}
    ]
    audit.sizes = [{"topic": evil, "p50": 1, "p99": 1, "most": 1}]
    audit.tags = [{**audit.topics[0], "tag": evil}]
    audit.minutes = [{"topic": evil, "minute": 28_333_333, "messages": 1, "bytes": 10}]
    tree = read(audit)
    assert not list(tree.iter("img"))
    assert not list(tree.iter("script"))


@pytest.mark.parametrize(
    ("minutes", "cut"),
    [
        ([5], (5, 1, 1)),
        ([0, 239], (0, 1, 240)),
        ([7, 300], (6, 2, 148)),
        ([1440, 1440 * 31], (1440, 240, 181)),
    ],
)
def test_a_time_axis_is_cut_into_few_steps(minutes: list[int], cut: tuple[int, int, int]) -> None:
    assert steps(minutes) == cut


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (12, "12 ms"), (1500, "1.5 s"), (120_000, "2 min"), (9_000_000, "2.5 h"),
                     (86_400_000 * 3, "3.0 days")],
)  # fmt: skip
def test_durations(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_sizes() -> None:
    assert [size_text(number) for number in (0, 1023, 1536, 1 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1 GiB",
    ]


# --- numbers --------------------------------------------------------------------------------------------


def test_percentiles_are_of_values_that_are_there() -> None:
    counts = pa.table({
        "topic": ["a", "a", "b", "a", "a"], "latency_ms": [5, 1, -3, 5, 100], "messages": [40, 50, 1, 9, 1],
    })  # fmt: skip
    a, b = traffic.spread(counts, "latency_ms", "topic")
    assert (a["p50"], a["p90"], a["p99"], a["p99_9"], a["most"]) == (1, 5, 5, 100, 100)
    assert (a["messages"], a["mean"], a["negative"]) == (100, pytest.approx(3.95), 0)
    assert (b["p50"], b["p99_9"], b["least"], b["negative"]) == (-3, -3, -3, 1)


def test_steps_are_powers_of_two_without_holes() -> None:
    counts = pa.table({"body_bytes": [0, 1, 2, 3, 4, 5, 33], "messages": [1, 2, 3, 4, 5, 6, 7]})
    found = [(row["up_to"], row["messages"]) for row in traffic.histogram(counts, "body_bytes")]
    assert found == [(0, 1), (1, 2), (2, 3), (4, 9), (8, 6), (16, 0), (32, 0), (64, 7)]


def test_a_hot_spot_has_its_worst_minute_and_tag() -> None:
    row = {"kind": "retries", "group": "g", "topic": "t", "store": 0, "reconsume_times_max": 1}
    (found,) = traffic.hot_spots([
        {**row, "tag": "a", "minute": 7, "messages": 5, "physical_offset": 300},
        {**row, "tag": "b", "minute": 6, "messages": 4, "physical_offset": 100, "reconsume_times_max": 9},
        {**row, "tag": "b", "minute": 7, "messages": 2, "physical_offset": 200},
    ])  # fmt: skip
    assert (found["messages"], found["peak_minute"], found["peak_messages"], found["tag"]) == (11, 7, 7, "b")
    assert (found["reconsume_times_max"], found["first"]["physical_offset"]) == (9, 100)
