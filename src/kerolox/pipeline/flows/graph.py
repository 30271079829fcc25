"""What flows where, drawn: boxes in columns from left to right, as SVG that takes the page's colours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Final

from kerolox.pipeline.flows.plan import Plan, sink_text, source_text, step_text

BOX: Final = (208, 66)
GAP: Final = (62, 22)
EDGE: Final = 10


@dataclass
class Box:
    """One thing that rows pass: its name, kind, a line about it, and how it is painted."""

    name: str
    kind: str
    text: str
    style: str
    column: int = 0
    row: float = 0.0
    reads: list[str] = field(default_factory=list)
    note: str = ""


def boxes(plan: Plan, notes: Mapping[str, tuple[str, str]], misfits: list[str]) -> dict[str, Box]:
    """All boxes by key. ``notes``: by flow its state and a line with its figures."""
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
    for name, archive in pipeline.archives.items():
        for topic in archive.topics:
            found.setdefault(f"topic {topic}", Box(topic, "topic", topic, "source"))
        state, note = notes.get(name, ("", ""))
        reads = [f"topic {topic}" for topic in archive.topics]
        found[f"archive {name}"] = Box(
            name, f"{archive.format} archive", archive.path, f"sink {state}", 1, reads=reads, note=note
        )
    if pipeline.bad_rows is not None:
        kind, where = sink_text(pipeline.bad_rows)
        aside = {check.of for check in pipeline.checks.values() if check.then == "set_aside"}
        reads = [name for name in misfits if name in found]
        reads += [each for name in aside for each in plan.reads.get(f"sink {name}", ()) if each not in reads]
        found["bad_rows"] = Box("bad_rows", kind, where, "sink side", behind(reads), reads=reads)
    _place(found)
    return found


def _place(found: dict[str, Box]) -> None:
    """Rows within columns: each box near the middle of what it reads, none above another."""
    for column in sorted({box.column for box in found.values()}):
        there = [box for box in found.values() if box.column == column]

        def wanted(box: Box) -> float:
            rows = [found[each].row for each in box.reads if each in found]
            return sum(rows) / len(rows) if rows else 0.0

        at = 0.0
        for number, box in enumerate(sorted(there, key=wanted) if column else there):
            box.row = float(number) if not column else max(at, wanted(box))
            at = box.row + 1


def drawing(plan: Plan, notes: Mapping[str, tuple[str, str]], misfits: list[str] | None = None) -> str:
    found = boxes(plan, notes, misfits or [])
    if not found:
        return ""
    width = EDGE * 2 + (BOX[0] + GAP[0]) * (1 + max(box.column for box in found.values())) - GAP[0]
    height = EDGE * 2 + (BOX[1] + GAP[1]) * (1 + max(box.row for box in found.values())) - GAP[1]
    parts = [_arrow(found[each], box) for box in found.values() for each in box.reads if each in found]
    parts += [_box(box) for box in found.values()]
    return (
        f'<svg class="flows" role="img" aria-label="what flows where" viewBox="0 0 {width} {height:.0f}" '
        f'style="max-width:{width}px"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="8" markerHeight="8" orient="auto"><path class="tip" d="M0,0L8,4L0,8Z"/></marker></defs>'
        f"{''.join(parts)}</svg>"
    )


def _corner(box: Box) -> tuple[float, float]:
    return EDGE + box.column * (BOX[0] + GAP[0]), EDGE + box.row * (BOX[1] + GAP[1])


def _arrow(start: Box, end: Box) -> str:
    (left, top), (right, bottom) = _corner(start), _corner(end)
    x1, y1, x2, y2 = left + BOX[0], top + BOX[1] / 2, right - 2, bottom + BOX[1] / 2
    bend = min(GAP[0] * 0.8, (x2 - x1) / 2)
    # A long way is straight until just before its end, so that it does not cross boxes between.
    straight = max(x1, x2 - GAP[0] + 4)
    path = f"M{x1:.0f},{y1:.0f}"
    if straight > x1 + 1:
        path += f"H{straight:.0f}"
        bend = (x2 - straight) / 2
    path += f"C{straight + bend:.0f},{y1:.0f} {x2 - bend:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
    return f'<path class="edge" d="{path}" marker-end="url(#tip)"/>'


def _box(box: Box) -> str:
    x, y = _corner(box)
    lines = [(20, "what", box.name), (37, "kind", box.kind), (54, "kind", box.note or _cut(box.text, 28))]
    texts = "".join(
        f'<text class="{style}" x="{x + 14:.0f}" y="{y + down:.0f}">{escape(_cut(text, 28))}</text>'
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
