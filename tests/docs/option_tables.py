"""The tables of options and columns in docs/SPARK.md, made of the declarations.

``python -m tests.docs.option_tables`` writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from kerolox.spark.option_table import CLUSTER, OptionTable

PAGE = Path(__file__).parents[2] / "docs" / "SPARK.md"
PLACE = re.compile(r"(<!-- (options|columns): (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def declared() -> dict[str, OptionTable]:
    from kerolox.spark.sink.options import SINK
    from kerolox.spark.source.options import SOURCE
    from kerolox.spark.store.options import OPTIONS

    def own(table: OptionTable) -> OptionTable:
        return OptionTable(table.what, *(option for option in table.options if option not in CLUSTER))

    return {
        "cluster": OptionTable("source and sink", *CLUSTER),
        "source": own(SOURCE),
        "sink": own(SINK),
        "store": OPTIONS,
    }


def rendered(table: OptionTable) -> str:
    lines = ["| option | value | default | |", "|---|---|---|---|"]
    for (key, expected, default, about), option in zip(table.describe(), table.options, strict=True):
        also = f" (also `{'`, `'.join(option.aliases)}`)" if option.aliases else ""
        only = f"; {option.only} only" if option.only else ""
        cells = (f"`{key}`{also}", expected, f"`{default}`" if default else "", about + only)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def columns(which: str) -> str:
    """The table of the columns of messages, or of rows that are sent."""
    from kerolox.spark.columns import COLUMNS, SPARK_TYPES
    from kerolox.spark.sink import row_columns

    lines = ["| column | type | |", "|---|---|---|"]
    if which == "source":
        rows = [(name, SPARK_TYPES[column.type], column.doc) for name, column in COLUMNS.items()]
    else:
        rows = [(name, column.types, column.doc) for name, column in row_columns.COLUMNS.items()]
    return "\n".join([*lines, *(f"| `{name}` | {kind} | {doc} |" for name, kind, doc in rows)]) + "\n"


def written() -> str:
    """The page with its tables as they must be."""
    tables = declared()

    def table(found: re.Match[str]) -> str:
        name = found[3]
        return found[1] + (rendered(tables[name]) if found[2] == "options" else columns(name))

    return PLACE.sub(table, PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
