"""The table of metrics in docs/OPERATIONS.md, made of the calls that write them.

``python -m tests.docs.metric_reference`` writes it anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.source_names import ROOT, SOURCE, tree_of

PAGE = ROOT / "docs" / "OPERATIONS.md"
PLACE = re.compile(r"(?<=<!-- metrics -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
SERVERS = ("broker", "controller", "nameserver", "net")
KINDS = ("gauge", "counter", "histogram")


class Metric(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


def metrics_in(path: Path) -> Iterator[Metric]:
    """Metrics in calls of ``metric`` and ``gauge``, and in tables of a name, a text and a function."""
    for function in ast.walk(tree_of(path)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Attribute(attr="metric" | "gauge"), args=parts):
                    labels = _labels(node)
                case ast.Tuple(elts=parts):
                    labels = _labels(function)
                case _:
                    continue
            texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            if texts and str(texts[0]).startswith("kerolox_"):
                name, *rest = map(str, texts)
                kind = next((text for text in rest if text in KINDS), "gauge")
                about = next(text for text in rest if text not in KINDS)
                yield Metric(name, kind, labels, about.rstrip("."))


def _labels(within: ast.AST) -> tuple[str, ...]:
    for node in ast.walk(within):
        if isinstance(node, ast.Dict) and node.keys:
            return tuple(str(key.value) for key in node.keys if isinstance(key, ast.Constant))
    return ()


def metrics() -> list[Metric]:
    found = {
        metric.name: metric
        for server in SERVERS
        for path in sorted((SOURCE / server).rglob("*.py"))
        for metric in metrics_in(path)
    }
    return [found[name] for name in sorted(found)]


def rendered() -> str:
    lines = ["| metric | kind | labels | |", "|---|---|---|---|"]
    for name, kind, labels, about in metrics():
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {about} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The page with its table as it must be."""
    return PLACE.sub(lambda _: rendered(), PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
