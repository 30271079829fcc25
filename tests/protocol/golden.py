"""The recorded conversations of Apache's programs (tests/data/golden), as rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "data" / "golden"


class Row(NamedTuple):
    conversation: str
    server: str
    connection: int
    sender: str
    header: dict[str, Any]  # what Apache's own decoder reads
    frame: bytes


def rows(kind: str) -> Iterator[Row]:
    for path in sorted((FOLDER / kind).glob("*.jsonl")):
        for line in path.read_text().splitlines()[1:]:
            row = json.loads(line)
            yield Row(
                path.stem,
                row["server"],
                row["connection"],
                row["from"],
                row["header"],
                base64.b64decode(row["frame"]),
            )
