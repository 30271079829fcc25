"""Plan of a pipeline: its names, the tables that each step and sink reads, and its flows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.definition import (
    ArchiveSource,
    LakeSink,
    LakeTable,
    Pipeline,
    PythonStep,
    Sink,
    Source,
    SparkSink,
    SparkSource,
    SqlStep,
    Step,
    StoreSource,
    TopicSink,
    TopicSource,
)
from kerolox.pipeline.flows.document import Document
from kerolox.pipeline.flows.reading import did_you_mean
from kerolox.pipeline.flows.sql_names import tables_in

BAD_ROWS = "bad_rows"
MISFITS = "bad_rows_of_"


@dataclass
class Plan:
    """Sources and steps in the order in which they can be created, and the tables each one reads."""

    pipeline: Pipeline
    order: list[str] = field(default_factory=list)  # sources, then steps
    reads: dict[str, list[str]] = field(default_factory=dict)  # of steps and sinks

    def needed(self, name: str) -> set[str]:
        """Return all sources and steps that a step or sink depends on."""
        found: set[str] = set()
        waiting = [*self.reads.get(name, ())]
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += self.reads.get(one, ())
        return found

    def readers(self, source: str) -> list[str]:
        """Return the flows that read a source, including the flow of its bad rows."""
        found = [name for name in self.pipeline.sinks if source in self.needed(f"sink {name}")]
        if self.pipeline.bad_rows is not None:
            steps = [name for name in self.pipeline.steps if source in self.needed(name)]
            found += [f"{MISFITS}{name}" for name in (source, *steps)]
        return found

    def edges(self) -> Iterator[tuple[str, str]]:
        for name, reads in self.reads.items():
            for one in reads:
                yield one, name


def make_plan(pipeline: Pipeline, document: Document) -> Plan:
    """Make the plan. Unknown names, cycles and unused names are added to the document as problems."""
    plan = Plan(pipeline)
    tables = {**pipeline.sources, **pipeline.steps}
    by_lower = {name.lower(): name for name in tables}
    for name, step in pipeline.steps.items():
        plan.reads[name] = _reads(step, name, by_lower, document)
    for name, sink in pipeline.sinks.items():
        found = by_lower.get(sink.from_.lower())
        if found is None and sink.from_.lower() not in document.broken:
            near = did_you_mean(sink.from_, tables) or f". There are {', '.join(tables) or 'none'}"
            document.add(("sinks", name, "from"), f'there is no source or step "{sink.from_}"{near}')
        key = f"sink {name}"
        plan.reads[key] = [found] if found else []
    plan.order = list(pipeline.sources)
    _sort_steps(plan, document)
    used = set().union(*(plan.needed(f"sink {name}") for name in pipeline.sinks)) if pipeline.sinks else set()
    for section, names in (("sources", pipeline.sources), ("steps", pipeline.steps)):
        for name in names:
            if name not in used and not document.broken:
                document.add((section, name), "no sink uses it", level="warning")
    return plan


def _reads(step: Step, name: str, by_lower: dict[str, str], document: Document) -> list[str]:
    place = ("steps", name)
    if isinstance(step, PythonStep):
        for at, each in enumerate(step.from_):
            if each.lower() not in by_lower and each.lower() not in document.broken:
                near = did_you_mean(each, by_lower.values())
                document.add((*place, "from", str(at)), f'there is no source or step "{each}"{near}')
        return [by_lower[each.lower()] for each in step.from_ if each.lower() in by_lower]
    found = []
    reads_broken = False
    for table in tables_in(step.sql):
        known = by_lower.get(table.lower())
        if table.lower() in document.broken:
            reads_broken = True
            continue
        if known is not None:
            found.append(known)
        elif near := did_you_mean(table, by_lower.values()):
            document.add((*place, "sql"), f'there is no source or step "{table}"{near}')
    if reads_broken:
        document.broken.add(name.lower())  # neither it nor its readers can be checked
    if (
        not found
        and not reads_broken
        and not any(problem.place.startswith(".".join(place)) for problem in document.problems)
    ):
        document.add((*place, "sql"), "reads no source or step", level="warning")
    return found


def _sort_steps(plan: Plan, document: Document) -> None:
    """Order the steps after the tables they read; report a cycle as a problem."""
    done = set(plan.order)
    waiting = list(plan.pipeline.steps)
    while waiting:
        ready = [name for name in waiting if done.issuperset(plan.reads[name])]
        if not ready:
            cycle = _cycle(plan, waiting)
            document.add(("steps", cycle[0]), f"steps read each other in a cycle: {' → '.join(cycle)}")
            return
        plan.order += ready
        done.update(ready)
        waiting = [name for name in waiting if name not in done]


def _cycle(plan: Plan, waiting: list[str]) -> list[str]:
    path = [waiting[0]]
    while True:
        following = next(name for name in plan.reads[path[-1]] if name in waiting)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)


# --- how it is shown ----------------------------------------------------------------------------------


def source_text(source: Source) -> tuple[str, str]:
    """Return kind and place of a source, for display."""
    if isinstance(source, TopicSource):
        named = ", ".join(source.topics_named()) or source.topic_pattern
        return "topic" if source.stream else "topic, as a table", named
    if isinstance(source, StoreSource):
        return "store files", source.store
    if isinstance(source, ArchiveSource):
        return f"{source.format} table", source.archive
    assert isinstance(source, SparkSource)
    return f"{source.format}{' stream' if source.stream else ''}", source.path


def sink_text(sink: Sink | LakeTable) -> tuple[str, str]:
    """Return kind and place of a sink, for display."""
    if isinstance(sink, TopicSink):
        return "topic, once" if sink.once else "topic", sink.topic
    if isinstance(sink, LakeTable):
        return f"{sink.format} table", sink.table or sink.path
    assert isinstance(sink, SparkSink)
    return sink.format, sink.path


def step_text(step: Step) -> tuple[str, str]:
    if isinstance(step, SqlStep):
        return "SQL", " ".join(step.sql.split())
    return "Python", step.python


def rows_of(plan: Plan) -> list[tuple[str, str, str, str, str]]:
    """Return the plan as rows: section, name, kind, place, reads."""
    pipeline = plan.pipeline
    rows = [("source", name, *source_text(source), "") for name, source in pipeline.sources.items()]
    for name in plan.order:
        if name in pipeline.steps:
            kind, text = step_text(pipeline.steps[name])
            rows.append(("step", name, kind, _cut(text), ", ".join(plan.reads[name])))
    for name, sink in pipeline.sinks.items():
        kind, where = sink_text(sink)
        rows.append(("sink", name, kind, where, ", ".join(plan.reads[f"sink {name}"])))
        for check_name, check in pipeline.checks.items():
            if check.of == name:
                rows.append(("check", check_name, check.kind.replace("_", " "), f"else {check.then}", name))
    for name, archive in pipeline.archives.items():
        rows.append(
            (
                "archive",
                name,
                f"{archive.format} archive",
                archive.place,
                ", ".join(archive.topics),
            )
        )
    if pipeline.bad_rows is not None:
        rows.append((BAD_ROWS, "", *sink_text(pipeline.bad_rows), ""))
    return rows


def text_graph(plan: Plan) -> str:
    """Return the plan as text: a tree for each sink, from the sink back to its sources."""
    pipeline = plan.pipeline
    lines: list[str] = []
    for name, sink in pipeline.sinks.items():
        kind, where = sink_text(sink)
        lines.append(f"{name} ({kind} {where})".replace(" )", ")"))
        _branches(plan, plan.reads[f"sink {name}"], "", lines)
    for name, archive in pipeline.archives.items():
        lines.append(f"{name} ({archive.format} archive {archive.place})")
        for at, topic in enumerate(archive.topics):
            lines.append(f"{'└' if at + 1 == len(archive.topics) else '├'}── topic {topic}")
    return "\n".join(lines)


def _branches(plan: Plan, names: list[str], before: str, lines: list[str]) -> None:
    for at, name in enumerate(names):
        last = at + 1 == len(names)
        if name in plan.pipeline.sources:
            kind, where = source_text(plan.pipeline.sources[name])
        else:
            kind, where = step_text(plan.pipeline.steps[name])
            where = _cut(where, 60)
        lines.append(f"{before}{'└' if last else '├'}── {name} ({kind} {where})".replace(" )", ")"))
        _branches(plan, plan.reads.get(name, []), before + ("    " if last else "│   "), lines)


def _cut(text: str, length: int = 100) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def flow_names(pipeline: Pipeline) -> list[str]:
    return [*pipeline.sinks, *pipeline.archives]


class UnknownFlow(KeroloxError):
    """A flow that the pipeline does not have."""

    def __init__(self, name: str, pipeline: Pipeline) -> None:
        near = did_you_mean(name, flow_names(pipeline))
        super().__init__(f"the pipeline {pipeline.name} has no flow {name!r}{near or '.'} It has "
                         f"{', '.join(flow_names(pipeline))}")  # fmt: skip


__all__ = ["LakeSink", "Plan", "make_plan"]
