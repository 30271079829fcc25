"""Casts of a query that may fail, and the condition that is true of the failing rows.

In Spark's ANSI mode one text that is not a number ends a query, and the error names no row. A pipeline with
bad rows finds such rows before its steps run: the analysed plan of a step has every cast, including those
that Spark adds for comparisons, and a row fails if the value is not null and its ``TRY_CAST`` is.

Only certain failures are found. A cast after ``AND`` or a filter is evaluated only for rows that pass the
condition before it. Casts within ``CASE``, ``IF`` or ``COALESCE``, over joins, or of columns computed by the
query are not checked: there a query fails as it does without bad rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VALUE_LENGTH: Final = 40  # characters of a value in a reason
CASTS_MAX: Final = 64
# Nodes that pass on or drop single rows, so that nodes above them see single rows of the table.
ROW_BY_ROW: Final = frozenset({"Project", "Filter", "SubqueryAlias"})
TOPS: Final = ROW_BY_ROW | {"Aggregate", "Distinct", "Sort"}
# Expressions that evaluate only some of their children, or have special children.
NOT_ALWAYS: Final = frozenset(
    {"CaseWhen", "If", "Coalesce", "NullIf", "Nvl", "Nvl2", "IfNull", "TryEval", "LambdaFunction"}
)


class FailingCast(NamedTuple):
    """A cast, and the conditions under which it is evaluated, all as SQL."""

    value: str
    kind: str
    guards: tuple[str, ...]

    @property
    def condition(self) -> str:
        wrong = (f"({self.value}) IS NOT NULL", f"TRY_CAST({self.value} AS {self.kind}) IS NULL")
        return " AND ".join((*self.guards, *wrong))

    @property
    def reason(self) -> str:
        shown = f"left(CAST({self.value} AS STRING), {VALUE_LENGTH})"
        about = f"' is no {self.kind}: {self.value}".replace("\\", "\\\\").replace('"', '\\"')
        return f'concat("\'", {shown}, "{about}")'


def reason_expression(casts: list[FailingCast]) -> str:
    """Return SQL that gives the reason a row fails: its first failing cast; null for other rows."""
    cases = " ".join(f"WHEN {each.condition} THEN {each.reason}" for each in casts)
    return f"CASE {cases} END"


@dataclass
class Found:
    """Casts of a query over one table that may fail, and the table's alias in the query."""

    alias: str
    casts: list[FailingCast] = field(default_factory=list)


def failing_casts(table: DataFrame) -> Found | None:
    """Return the casts of a query's analysed plan that may fail on a row; None if none can be checked."""
    chain = _chain(_analysed(table))
    if chain is None:
        return None
    view, nodes = chain
    known = {view.output().apply(at).exprId().id() for at in range(view.output().size())}
    found = Found(_alias(nodes))
    guards: tuple[str, ...] = ()
    for node in reversed(nodes):
        kind = _kind(node)
        if kind == "SubqueryAlias":
            continue
        for expression in _parts(node.expressions()):
            found.casts += _casts(expression, known, guards)
        if kind == "Filter":
            condition = node.condition()
            if not _is_of(condition, known):
                break  # the table's columns do not tell which rows pass it
            guards = (*guards, f"({condition.sql()}) IS TRUE")
        if kind not in ROW_BY_ROW:
            break
    return found if found.casts and len(found.casts) <= CASTS_MAX else None


def is_row_by_row(table: DataFrame) -> bool:
    """Return True if each row comes from one row of one source, so that a separate query can read it."""
    node = _analysed(table)
    while True:
        children = _parts(node.children())
        if not children:
            return True
        if len(children) > 1 or _kind(node) not in ROW_BY_ROW | {"View", "EventTimeWatermark"}:
            return False
        node = children[0]


def _analysed(table: DataFrame) -> Any:
    return table._jdf.queryExecution().analyzed()


def _chain(node: Any) -> tuple[Any, list[Any]] | None:
    """Return the only table a query reads, and the nodes above it from the top; None for several tables."""
    nodes = []
    while _kind(node) != "View":
        children = _parts(node.children())
        if len(children) != 1 or _kind(node) not in TOPS:
            return None
        nodes.append(node)
        node = children[0]
    return node, nodes


def _alias(nodes: list[Any]) -> str:
    """Return the qualifier of the table's columns: the last alias directly above it."""
    alias = ""
    for node in reversed(nodes):
        if _kind(node) != "SubqueryAlias":
            break
        alias = node.alias()
    return alias


def _casts(expression: Any, known: set[int], guards: tuple[str, ...]) -> Iterator[FailingCast]:
    kind = _kind(expression)
    children = _parts(expression.children())
    if kind in NOT_ALWAYS or "Subquery" in kind or (kind == "AggregateExpression" and len(children) > 1):
        return
    if kind in ("And", "Or"):
        left, right = children
        yield from _casts(left, known, guards)
        if _is_of(left, known):  # else the rows that reach the right side are unknown
            passed = "IS NOT FALSE" if kind == "And" else "IS NOT TRUE"
            yield from _casts(right, known, (*guards, f"({left.sql()}) {passed}"))
        return
    for child in children:
        yield from _casts(child, known, guards)
    if kind == "Cast" and expression.evalMode().toString() == "ANSI" and _may_fail(expression, known):
        yield FailingCast(expression.child().sql(), expression.dataType().sql(), guards)


def _may_fail(cast: Any, known: set[int]) -> bool:
    target = cast.dataType().sql()
    if target.startswith("STRING") or "<" in target or not _is_of(cast, known):
        return False
    return bool(cast.references().size()) and not type_can_up_cast(cast)


def type_can_up_cast(cast: Any) -> bool:
    return bool(cast.canUpCast(cast.child().dataType(), cast.dataType()))


def _is_of(expression: Any, known: set[int]) -> bool:
    """Return True for a deterministic expression over columns of the table."""
    references = _parts(expression.references().toSeq())
    return bool(expression.deterministic()) and all(each.exprId().id() in known for each in references)


def _kind(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def _parts(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]
