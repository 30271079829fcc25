"""Every piece of Python in the guides is run as it stands there, section by section, against a real broker.

What a piece needs and what must have come of it is in comments before it, which no reader sees: ``before``
and ``after`` it code is run, and ``until`` a condition holds ``wait_closed`` waits.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import importlib.util
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

import kerolox
from kerolox import Producer, ProducerOptions, PushOptions
from kerolox.client.consume.consumer import Consumer
from kerolox.testing import BrokerThread, broker_in_thread

ROOT = Path(__file__).parents[2]
ADDRESS = "127.0.0.1:9876"  # in the text
IMPORTS = (
    "import asyncio\n"
    "from kerolox import Client, ClientOptions, DeadLetter, Message, Producer, ProducerOptions\n"
    "from kerolox import PullConsumer, PullOptions, PushConsumer, PushOptions, Received, Retry, Suspend\n"
)
ON_SPARK = "A topic as a Spark table"  # of the README: tests/docs/test_spark.py runs it
NOTE = re.compile(r"^<!-- (before|until|after): (.*) -->$")


@dataclass
class Piece:
    """One block of code."""

    file: str
    line: int
    code: str
    notes: dict[str, str]
    kind: str = "python"

    @property
    def padded(self) -> str:
        """With its own line numbers, for tracebacks."""
        return "\n" * (self.line - 1) + self.code


@dataclass
class Section:
    """Section of a page, with its code."""

    title: str
    pieces: list[Piece] = field(default_factory=list)


def sections(path: Path, *kinds: str) -> list[Section]:
    """Those with code of these kinds."""
    found = [Section("head")]
    notes: dict[str, str] = {}
    code: list[str] | None = None
    kind = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if code is not None:
            if line == "```":
                source = "\n".join(code) + "\n"
                found[-1].pieces.append(Piece(path.name, number - len(code), source, notes, kind))
                code, notes = None, {}
            else:
                code.append(line)
        elif line.startswith("```") and line[3:] in (kinds or ("python",)):
            kind, code = line[3:], []
        elif line.startswith("#"):
            found.append(Section(line.strip("# ")))
        elif note := NOTE.match(line):
            notes[note.group(1)] = note.group(2)
    return [section for section in found if section.pieces]


PLACES = [
    pytest.param(section, id=f"{path.stem}: {section.title}")
    for path in (ROOT / "docs" / "CLIENT.md", ROOT / "README.md")
    for section in sections(path)
    if section.title != ON_SPARK
]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with broker_in_thread(recall=True) as broker:
        yield broker


@pytest.mark.parametrize("section", PLACES)
async def test_code(section: Section, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    until = ["True"]

    async def wait_closed(consumer: Consumer) -> None:
        async with asyncio.timeout(30):
            while not eval(until[0], names):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def create_topic(topic: str) -> None:
        broker.create_topic(topic)

    async def run(source: str, file: str) -> None:
        source = source.replace(ADDRESS, broker.nameserver_address)
        code = compile(source, file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            await result

    monkeypatch.setattr(Consumer, "wait_closed", wait_closed)
    names: dict[str, Any] = {"__name__": "guide", "broker": broker, "create_topic": create_topic}
    exec(IMPORTS, names)
    async with Producer(broker.nameserver_address, group="guide") as producer:
        names["producer"] = producer
        for piece in section.pieces:
            until[0] = piece.notes.get("until", "True")
            await run(piece.notes.get("before", ""), "before")
            await run(piece.padded, piece.file)
            assert eval(until[0], names)
            await run(piece.notes.get("after", ""), "after")
            if names["producer"] is not producer:  # the piece made, and closed, its own
                names["producer"] = producer


def test_the_guide_says_what_is_imported() -> None:
    (first, *_) = sections(ROOT / "docs" / "CLIENT.md")
    assert IMPORTS in [piece.code for piece in first.pieces]


def test_options_and_errors_in_tables_exist() -> None:
    text = (ROOT / "docs" / "CLIENT.md").read_text()
    named = re.findall(r"\b(ClientOptions|ProducerOptions|PullOptions|PushOptions)\(([^)\n]*)", text)
    assert len(named) > 20
    for kind, arguments in named:
        for name in re.findall(r"(\w+)=", re.sub(r"\(.*", "", arguments)):
            assert name in {each.name for each in fields(getattr(kerolox, kind))}, f"{kind}({name}=)"
    tuning = text[text.index("## Tuning") : text.index("## All errors")]
    known = {each.name for kind in (ProducerOptions, PushOptions) for each in fields(kind)}
    for name in re.findall(r"`(?:\w+\()?(\w+)=", tuning):
        assert name in known | {"batch"}, name
    table = text[text.index("| error |") : text.index("## Coming from Java")]
    names = re.findall(r"`([A-Z]\w+)`", table)
    assert len(names) > 10
    for name in names:
        known_name = name in kerolox.__all__ or hasattr(builtins, name)
        assert known_name, f"the guide says that {name} can be imported from kerolox"
    for module, name in re.findall(r"`(kerolox[\w.]*)\.(\w+)`", text):
        found = importlib.util.find_spec(f"{module}.{name}")
        assert found is not None or hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_no_guide_imports_from_a_room_of_the_client() -> None:
    """Programs import from kerolox, kerolox.blocking and kerolox.testing: rooms may be moved."""
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "examples").rglob("*.py")]
    imports = r"^\s*(?:from|import) (kerolox[\w.]*)"
    places = [place for page in pages for place in re.findall(imports, page.read_text(), re.MULTILINE)]
    assert len(places) > 10
    assert [place for place in places if place.startswith("kerolox.client")] == []


def test_a_piece_that_fails_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("# A\n<!-- before: x = 1 -->\n```python\nassert x == 2\n```\n")
    (section,) = sections(tmp_path / "x.md")
    (piece,) = section.pieces
    assert (piece.line, piece.notes) == (4, {"before": "x = 1"})
    with pytest.raises(AssertionError):
        exec(compile(piece.padded, piece.file, "exec"), {"x": 1})
