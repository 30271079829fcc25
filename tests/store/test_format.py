"""The examples in FORMAT.md are what the code writes."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from tests.store.dispatch.kit import options_for

import kerolox.store
from kerolox.protocol.ha_epochs import Epoch
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.properties import pack
from kerolox.store.disk.epoch_file import EpochFile
from kerolox.store.disk.files import Files
from kerolox.store.disk.progress_notes import ProgressNotes, ProgressNotesFile
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.mend import apply_skip, plan_skip
from kerolox.store.offline.verify import verify
from kerolox.store.rebuild import rebuild
from kerolox.store.tables.offsets import ConsumerOffsets
from kerolox.testing.clock import ManualClock

PAGE = Path(kerolox.store.__file__).with_name("FORMAT.md")
T0 = 1_700_000_000_000


def dump(data: bytes, start: int = 0) -> str:
    """Sixteen bytes a line: place, bytes, letters."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start + at:06x}  {part.hex(' '):47}  {letters}")
    return "\n".join(lines)


def examples(path: Path) -> dict[str, str]:
    """Make a store of three messages and show a piece of each of its files."""

    async def work() -> list[tuple[int, int, int]]:
        clock = ManualClock(T0)
        options = options_for(path, index_slots=10, index_entries=20)
        async with MessageStore(options, clock=clock) as store:
            places = []
            for number, body in enumerate((b"Hello RocketMQ", b"the second one", b"x" * 3800)):
                properties = pack({"KEYS": f"k{number + 1}", "TAGS": "TagA"})
                clock.step_wall(1000)
                places.append(
                    await store.put(
                        "TopicTest",
                        0,
                        body,
                        properties,
                        born_timestamp=T0,
                        born_host=host_bytes("10.0.0.1:54321"),
                    )
                )
        return places

    places = asyncio.run(work())
    log = (path / "commitlog" / f"{0:020d}").read_bytes()
    queue = path / "consumequeue/TopicTest/0" / f"{0:020d}"
    index = (path / "index" / os.listdir(path / "index")[0]).read_bytes()
    shown = {
        "record": dump(log[: places[0][2]]),
        "blank record": dump(log[places[1][0] + places[1][2] :][:16], places[1][0] + places[1][2]),
        "consume queue": dump(queue.read_bytes()[:80]),
        "index header": dump(index[:40]),
        "index slots": dump(index[40:80], 40),
        "index entries": dump(index[80 : 80 + 80], 80),
        "checkpoint": dump((path / "checkpoint").read_bytes()[:48]),
        "lock": dump((path / "lock").read_bytes()),
    }
    marks = ProgressNotesFile(Files(), path / "marks")
    os.mkdir(path / "marks")
    end = places[2][0] + places[2][2]
    marks.save(
        ProgressNotes(
            boot="9f1c", dispatched=end, flushed=end, queues=1, index_files=1, log_end=end, queue_files=1
        )
    )
    marks.close()
    shown["kerolox.marks"] = (path / "marks/kerolox.marks").read_bytes().rstrip(b"\0\n").decode()
    epochs = EpochFile(Files(), path / "epochFileCheckpoint")
    epochs.take((Epoch(1, 0), Epoch(3, 4567)))
    shown["epochFileCheckpoint"] = (path / "epochFileCheckpoint").read_text().rstrip()
    offsets = ConsumerOffsets(Files(), path / "config", clock=ManualClock(T0))
    offsets.commit("TopicTest", "billing", 0, 250)
    offsets.commit("TopicTest", "billing", 1, 251)
    shown["consumerOffset.json"] = offsets.encode().decode()
    # The same store after the second message was damaged and stepped over.
    with open(path / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(places[1][0] + 88)
        file.write(b"\xff")
    layout = find_layout(path, options_for(path, index_slots=10, index_entries=20))
    apply_skip(layout, plan_skip(layout, places[1][0]))
    rebuild(layout)
    log = (path / "commitlog" / f"{0:020d}").read_bytes()
    shown["filler record"] = dump(log[places[1][0] : places[1][0] + places[1][2]], places[1][0])
    shown["consume queue with a lost message"] = dump(queue.read_bytes()[:60])
    assert verify(layout, clock=ManualClock(T0)).clean
    return shown


def test_every_example_is_what_the_code_writes(tmp_path: Path) -> None:
    text = PAGE.read_text()
    blocks = dict(re.findall(r"Example, ([\w. ]+):\n\n```\n(.*?)\n```", text, re.DOTALL))
    made = examples(tmp_path)
    assert set(blocks) == set(made)
    for name, expected in made.items():
        assert blocks[name] == expected, name


@pytest.mark.parametrize("heading", ["Consume queue entry", "checkpoint", "Promises", "Lost messages"])
def test_the_code_points_at_headings_that_exist(heading: str) -> None:
    assert re.search(rf"^#+ {heading}$", PAGE.read_text(), re.MULTILINE)


def test_every_pointer_in_the_code_has_a_heading() -> None:
    for path in PAGE.parents[1].rglob("*.py"):
        for heading in re.findall(r'FORMAT\.md, "([^"]+)"', path.read_text()):
            assert re.search(rf"^#+ {re.escape(heading)}$", PAGE.read_text(), re.MULTILINE), (path, heading)
