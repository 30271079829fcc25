"""Conditions with the answers of Apache RocketMQ's own filter classes: see tests/peers/test_filters.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerolox.protocol.filters.lexer import FilterError
from kerolox.protocol.filters.numbers import Unanswerable
from kerolox.protocol.filters.sql import compile_filter
from kerolox.protocol.properties import pack

GOLDEN = Path(__file__).parents[2] / "data" / "sql92.json"
SEED = 20261116
_SAID = {True: "true", False: "false", None: "null"}


def ours(case: Mapping[str, Any]) -> list[str] | None:
    """What we answer: None when the condition is refused, else one word per message."""
    try:
        compiled = compile_filter(case["expression"])
    except FilterError:
        return None
    answers: list[str] = []
    for properties in case["properties"]:
        try:
            answers.append(_SAID[compiled.evaluate(pack(properties))])
        except Unanswerable:
            answers.append("error")
    return answers
