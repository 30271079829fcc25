"""The tables of options in docs/SPARK.md, made of the declarations.

``python -m tests.docs.option_tables`` writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from kerolox.spark.option_table import CLUSTER, OptionTable

PAGE = Path(__file__).parents[2] / "docs" / "SPARK.md"
PLACE = re.compile(r"(?<=<!-- options: )(\w+) -->\n(.*?)(?=<!-- end -->)", re.DOTALL)


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


def written() -> str:
    """The page with its tables as they must be."""
    tables = declared()
    return PLACE.sub(lambda found: f"{found[1]} -->\n{rendered(tables[found[1]])}", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
