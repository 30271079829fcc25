"""The options of a query that reads store directories, and their values."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kerolox.errors import OptionError
from kerolox.sizes import size_bytes
from kerolox.spark.bodies.options import OF_SOURCES
from kerolox.spark.offsets import QueueOffsets, read_offsets
from kerolox.spark.option_table import (
    MOMENT,
    YES_NO,
    Option,
    OptionTable,
    Values,
    flag,
    moment,
    number,
    numbers,
    one_of,
    words,
)

LOG: Final = "log"
_OFFSETS: Final = 'earliest, latest, or {"topic": {"broker": {"0": 17}}}; -2 is earliest, -1 latest'


def _read_offsets(value: str) -> str | QueueOffsets:
    found = read_offsets(value)
    if found == "group":
        raise ValueError("a store does not know groups' offsets by broker")
    return found


def _pattern(value: str) -> str:
    try:
        return re.compile(value).pattern
    except re.error as error:
        raise ValueError(str(error)) from None


def _paths(value: str) -> tuple[str, ...]:
    # Spark writes load(["/a", "/b"]) as a list in JSON.
    if value.startswith("["):
        return tuple(str(path) for path in json.loads(value))
    return words(value)


OPTIONS: Final = OptionTable(
    "the format rocketmq-store",
    Option("path", _paths, "a store directory, several with commas, or a pattern", "directories to read"),
    Option("paths", _paths, "like path", "alias of path"),
    Option("broker", words, "a name for each path", "broker column. Default: the directory name"),
    Option("commitLog", words, "directories", "log directories of a single path, if not commitlog/"),
    Option("from", one_of("queues", LOG), "queues or log", "read queues, or the whole log", default="queues"),
    Option("topic", words, "topics with commas", "topics to read", aliases=("topics",)),
    Option("topicPattern", _pattern, "a regular expression", "topics to read whose full names match"),
    Option("queueIds", numbers, "numbers with commas", "queues to read"),
    Option("startingOffsets", _read_offsets, _OFFSETS, "start offsets", default="earliest"),
    Option("endingOffsets", _read_offsets, _OFFSETS, "end offsets, exclusive", default="latest"),
    Option("startingTimestamp", moment, MOMENT, "only messages stored at this time or later"),
    Option("endingTimestamp", moment, MOMENT, "only messages stored before this time"),
    Option("maxSplitBytes", size_bytes, "bytes, such as 64m", "maximum size of a task", default=128 << 20),
    Option("minPartitions", number(1), "a number", "minimum number of tasks, if possible", default=1),
    Option(
        "properties", one_of("map", "string", "none"), "map, string or none", "form of the properties",
        default="map",
    ),
    Option("verifyCrc", flag, YES_NO, "verify the CRC of every body. Default: only with report=corrupt"),
    Option("onCorrupt", one_of("fail", "skip"), "fail or skip", "action for damage", default="fail"),
    Option("report", one_of("corrupt"), "corrupt", "return a table of the damage instead of the messages"),
    *OF_SOURCES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """Which rows are wanted, and how closely they are looked at. Known to every task."""

    topics: frozenset[str] | None = None
    pattern: str | None = None
    after_ms: int | None = None  # stored then or later
    before_ms: int | None = None  # stored before
    verify_crc: bool = False
    skip: bool = False
    report: bool = False

    def has(self, topic: str) -> bool:
        if self.topics is not None:
            return topic in self.topics
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None

    @property
    def chooses_topics(self) -> bool:
        return self.topics is not None or self.pattern is not None


def parse(given: Mapping[str, str]) -> Values:
    return OPTIONS.parse(given, "batch")


def read_choice(values: Values) -> StoreChoice:
    """Raises OptionError for options that contradict each other."""
    values.at_most_one("topic", "topicPattern")
    values.at_most_one("startingOffsets", "startingTimestamp")
    values.at_most_one("endingOffsets", "endingTimestamp")
    if values["from"] == LOG:
        for key in ("queueIds", "startingOffsets", "endingOffsets"):
            if values.has(key):
                raise OptionError(key, values[key], "from = queues with it; the log has no queues")
    begin, end = values["startingTimestamp"], values["endingTimestamp"]
    if begin is not None and end is not None and begin >= end:
        raise OptionError(
            "startingTimestamp", begin, f"a time before endingTimestamp = {end}: nothing lies between them"
        )
    report = values["report"] is not None
    if report and values.has("bodyFormat"):
        raise OptionError("bodyFormat", values["bodyFormat"], "no report with it: damage has no bodies")
    verify = values["verifyCrc"]
    return StoreChoice(
        topics=None if values["topic"] is None else frozenset(values["topic"]),
        pattern=values["topicPattern"],
        after_ms=values["startingTimestamp"],
        before_ms=values["endingTimestamp"],
        verify_crc=report if verify is None else verify,
        skip=report or values["onCorrupt"] == "skip",
        report=report,
    )


def find_paths(values: Values) -> list[tuple[str, str]]:
    """Broker names and store directories."""
    key = values.exactly_one("path", "paths")
    paths: list[str] = []
    for word in values[key]:
        path = word.removeprefix("file://") if word.startswith("file:///") else word.removeprefix("file:")
        if "://" in path:
            raise OptionError(key, word, "a path of the local file system, mounted on every worker")
        if os.path.isdir(path):
            paths.append(os.path.abspath(path))
            continue
        found = sorted(os.path.abspath(each) for each in glob.glob(path) if os.path.isdir(each))
        if not found:
            raise OptionError(key, word, "a directory that is there, or a pattern of some")
        paths += found
    paths = list(dict.fromkeys(paths))
    names = values["broker"] or tuple(_name_of(path) for path in paths)
    if len(names) != len(paths):
        raise OptionError(
            "broker", ",".join(names), f"{len(paths)} names, one for each of {', '.join(paths)}"
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError("broker", twice, "another name for each path; give the option broker")
    if values["commitLog"] is not None and len(paths) > 1:
        raise OptionError("commitLog", ",".join(values["commitLog"]), "a single path with it")
    return list(zip(names, paths, strict=True))


def _name_of(path: str) -> str:
    """``/data/broker-a/store`` is broker-a's, and so is ``/data/broker-a``."""
    name = os.path.basename(path)
    return os.path.basename(os.path.dirname(path)) or name if name == "store" else name
