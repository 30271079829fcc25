"""Our filters against Apache's own: the same conditions, the same messages, the same answers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from kerolox.protocol.filters.bloom import BloomFilter
from kerolox.protocol.filters.sql import CHARACTERS_MAX, DEPTH_MAX, NESTING_MAX, TERMS_MAX
from tests.protocol.filters.expressions import SEARCHES, cases
from tests.protocol.filters.golden import GOLDEN, SEED, ours

from .driver import JavaDriver


def test_a_thousand_conditions_answer_alike(java_driver: JavaDriver) -> None:
    seed = int(os.environ.get("KEROLOX_FILTER_SEED", SEED))
    asked = cases(seed, 1200, 5)
    if java_driver.jars.is_4x:  # has none of these words: in ours a client of 4.x may use them
        asked = [
            case for case in asked if not re.search("|".join(SEARCHES), case["expression"], re.IGNORECASE)
        ]
    theirs = java_driver.call("filter.evaluate", cases=asked, timeout=120)
    different = [
        (case["expression"], case["properties"], theirs[number], answer)
        for number, case in enumerate(asked)
        if (answer := ours(case)) != theirs[number]
    ]
    assert not different, f"{len(different)} of {len(asked)}, the first: {different[0]}"
    refused = sum(answers is None for answers in theirs)
    assert len(asked) // 10 < refused < len(asked) // 2  # both kinds were tried


def test_the_recorded_answers_are_still_rocketmqs(java_driver: JavaDriver) -> None:
    """With KEROLOX_RECORD_FILTERS=1 they are recorded again."""
    if java_driver.jars.is_4x:
        pytest.skip("recorded from 5.x, which knows more words")
    asked = cases(SEED, 300, 3)
    theirs = java_driver.call("filter.evaluate", cases=asked, timeout=120)
    recorded = [{**case, "answers": answers} for case, answers in zip(asked, theirs, strict=True)]
    if os.environ.get("KEROLOX_RECORD_FILTERS") == "1":
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in recorded)
        Path(GOLDEN).write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    assert json.loads(Path(GOLDEN).read_text(encoding="utf-8")) == recorded


def test_bloom_filters_have_the_same_size_and_bits(java_driver: JavaDriver) -> None:
    names = [
        "g#t",
        "",
        "CG#TopicTest",
        "x" * 15,
        "x" * 16,
        "x" * 17,
        "x" * 31,
        "x" * 32,
        "grüße#中文",
        "😀#t",
    ]
    names += [f"group{number}#topic-{number % 7}" for number in range(300)]
    for error_percent, users in ((20, 32), (20, 64), (1, 1), (10, 128), (50, 3), (99, 7), (5, 1000)):
        theirs = java_driver.call("filter.bloom", f=error_percent, n=users, texts=names)
        filter = BloomFilter(error_percent, users)
        assert (filter.places, filter.bits) == (theirs["k"], theirs["m"])
        assert [list(filter.places_of(name)) for name in names] == theirs["places"]


def test_limits_of_size_are_ours_alone(java_driver: JavaDriver) -> None:
    """What we refuse because it is long or deep, RocketMQ takes: so honest ones must stay far below."""
    large = [
        "(" * (NESTING_MAX + 1) + "a = 1" + ")" * (NESTING_MAX + 1),
        " OR ".join(f"a = {number}" for number in range(TERMS_MAX + 1)),
        "a = 1" + " " * CHARACTERS_MAX,
        "NOT " * (2 * DEPTH_MAX) + "(a = 1)",
    ]
    asked = [{"expression": expression, "properties": [{"a": "1"}]} for expression in large]
    theirs = java_driver.call("filter.evaluate", cases=asked, timeout=120)
    assert theirs == [["true"]] * len(large)
    assert [ours(case) for case in asked] == [None] * len(large)
