"""Results: tables as they are printed, stored as JSON, and shown in docs/results/README.md."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import machine

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "results"


@dataclass
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append(
            "|" + "|".join("---" if place == 0 else "--:" for place in range(len(self.columns))) + "|"
        )
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines) + "\n"


@dataclass
class Result:
    """What one benchmark found. ``rounds`` keeps every single figure, for those who doubt the tables."""

    benchmark: str
    title: str
    about: list[str]
    machine: dict[str, str]
    flags: dict[str, Any]
    tables: list[Table]
    rounds: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path = FOLDER) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        self.machine["taken by other guests of the host"] = machine.stolen()
        path = folder / f"bench-{self.benchmark}.json"
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    def show(self) -> None:
        for table in self.tables:
            print(table.markdown(), flush=True)


def load(path: Path) -> Result:
    document = json.loads(path.read_text(encoding="utf-8"))
    document["tables"] = [Table(**table) for table in document["tables"]]
    return Result(**document)


def number(value: float) -> str:
    """With three digits that mean something: 0.123, 1.23, 12.3, 123, 12,300."""
    if value < 0:
        return f"-{number(-value)}"
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}"


def ratio(value: float) -> str:
    return f"{number(value)}x"
