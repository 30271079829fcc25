"""Graph of a pipeline as SVG: boxes in columns from left to right, in the page's colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Final

from kerolox.pipeline.flows.definition import TopicSource
from kerolox.pipeline.flows.plan import Plan, sink_text, source_text, step_text

BOX: Final = (208, 66)
GAP: Final = (62, 22)
EDGE: Final = 10
TEXT_MAX: Final = 26
WAY_HEIGHT: Final = 0.4  # in boxes: room for an arrow that passes a column


@dataclass
class Box:
    """Box of a source, step or sink: name, kind, a line of text, and style."""

    name: str
    kind: str
    text: str
    style: str
    column: int = 0
    row: float = 0.0
    reads: list[str] = field(default_factory=list)
    note: str = ""
    is_way: bool = False  # only room for an arrow between two boxes

    @property
    def height(self) -> float:
        """Height in rows."""
        return WAY_HEIGHT if self.is_way else 1.0


def boxes(plan: Plan, notes: Mapping[str, tuple[str, str]], misfits: list[str]) -> dict[str, Box]:
    """Return all boxes by key. ``notes``: state and a line of figures of each flow."""
    pipeline = plan.pipeline
    found: dict[str, Box] = {}
    for name, source in pipeline.sources.items():
        kind, where = source_text(source)
        found[name] = Box(name, kind, where, "source")
    for name in plan.order:
        if name in pipeline.steps:
            kind, text = step_text(pipeline.steps[name])
            reads = plan.reads[name]
            column = 1 + max((found[each].column for each in reads), default=0)
            found[name] = Box(name, kind, text, "step", column, reads=list(reads))

    def behind(reads: list[str]) -> int:
        return 1 + max((found[each].column for each in reads), default=0)

    for name, sink in pipeline.sinks.items():
        kind, where = sink_text(sink)
        state, note = notes.get(name, ("", ""))
        reads = plan.reads[f"sink {name}"]
        found[f"sink {name}"] = Box(
            name, kind, where, f"sink {state}", behind(reads), reads=list(reads), note=note
        )
    by_topic = {
        topic: name
        for name, source in pipeline.sources.items()
        if isinstance(source, TopicSource) and len(source.topics_named()) == 1
        for topic in source.topics_named()
    }
    for name, archive in pipeline.archives.items():
        reads = []
        for topic in archive.topics:
            key = by_topic.get(topic, f"topic {topic}")
            found.setdefault(key, Box(topic, "topic", topic, "source"))
            reads.append(key)
        state, note = notes.get(name, ("", ""))
        found[f"archive {name}"] = Box(
            name,
            f"{archive.format} archive",
            archive.place,
            f"sink {state}",
            1,
            reads=reads,
            note=note,
        )
    if pipeline.bad_rows is not None:
        kind, where = sink_text(pipeline.bad_rows)
        aside = {check.of for check in pipeline.checks.values() if check.then == "set_aside"}
        reads = [name for name in misfits if name in found]
        reads += [each for name in aside for each in plan.reads.get(f"sink {name}", ()) if each not in reads]
        found["bad_rows"] = Box("bad_rows", kind, where, "sink side", behind(reads), reads=reads)
    last = max((box.column for box in found.values()), default=0)
    for box in found.values():
        if box.style.startswith("sink"):
            box.column = last
    _lead_ways(found)
    _place(found)
    return found


def _lead_ways(found: dict[str, Box]) -> None:
    """Reserve room for arrows over several columns, so that they cross no box."""
    for key, box in list(found.items()):
        for at, reads in enumerate(box.reads):
            for column in range(found[reads].column + 1, box.column):
                # Arrows from the same box share their room in a column.
                way = f"way {box.reads[at]} {column}"
                found.setdefault(way, Box("", "", "", "", column, reads=[reads], is_way=True))
                reads = way
            found[key].reads[at] = reads


def _place(found: dict[str, Box]) -> None:
    """Set the rows within columns: each box near the middle of the boxes it reads, without overlap."""
    for column in sorted({box.column for box in found.values()}):
        there = [box for box in found.values() if box.column == column]

        def wanted(box: Box) -> float:
            rows = [found[each].row - (1 - found[each].height) / 2 for each in box.reads]
            return sum(rows) / len(rows) if rows else 0.0

        at = 0.0
        for box in sorted(there, key=wanted) if column else there:
            # The middle of a way is where the middle of a box would be.
            middle = wanted(box) + (1 - box.height) / 2
            box.row = max(at, middle) if column else at
            at = box.row + box.height


def drawing(plan: Plan, notes: Mapping[str, tuple[str, str]], misfits: list[str] | None = None) -> str:
    found = boxes(plan, notes, misfits or [])
    if not found:
        return ""
    width = EDGE * 2 + (BOX[0] + GAP[0]) * (1 + max(box.column for box in found.values())) - GAP[0]
    height = EDGE * 2 + (BOX[1] + GAP[1]) * max(box.row + box.height for box in found.values()) - GAP[1]
    parts = [_arrow(found[each], box) for box in found.values() for each in box.reads]
    parts += [_box(box) for box in found.values() if not box.is_way]
    return (
        f'<svg class="flows" role="img" aria-label="pipeline graph" viewBox="0 0 {width} {height:.0f}" '
        f'style="max-width:{width}px"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="8" markerHeight="8" orient="auto"><path class="tip" d="M0,0L8,4L0,8Z"/></marker></defs>'
        f"{''.join(parts)}</svg>"
    )


def _corner(box: Box) -> tuple[float, float]:
    return EDGE + box.column * (BOX[0] + GAP[0]), EDGE + box.row * (BOX[1] + GAP[1])


def _middle(box: Box) -> float:
    pitch = BOX[1] + GAP[1]
    return EDGE + (box.row + box.height / 2) * pitch - GAP[1] / 2


def _arrow(start: Box, end: Box) -> str:
    x1, y1 = _corner(start)[0] + BOX[0], _middle(start)
    x2, y2 = _corner(end)[0] - (0 if end.is_way else 2), _middle(end)
    half = (x2 - x1) / 2
    path = f"M{x1:.0f},{y1:.1f}C{x1 + half:.0f},{y1:.1f} {x2 - half:.0f},{y2:.1f} {x2:.0f},{y2:.1f}"
    if end.is_way:
        return f'<path class="edge" d="{path}h{BOX[0]}"/>'
    return f'<path class="edge" d="{path}" marker-end="url(#tip)"/>'


def _box(box: Box) -> str:
    x, y = _corner(box)
    lines = [(20, "what", box.name), (37, "kind", box.kind), (54, "kind", box.note or box.text)]
    texts = "".join(
        f'<text class="{style}" x="{x + 14:.0f}" y="{y + down:.0f}">{escape(_cut(text, TEXT_MAX))}</text>'
        for down, style, text in lines
    )
    return (
        f'<g class="box {escape(box.style)}"><title>{escape(f"{box.kind} {box.text}")}</title>'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="9"/>'
        f'<rect class="bar" x="{x:.0f}" y="{y:.0f}" width="5" height="{BOX[1]}" rx="2.5"/>{texts}</g>'
    )


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length // 2 - 1]}…{text[-(length // 2) :]}"
