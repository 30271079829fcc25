"""The table of what clients rely on names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
ROW = re.compile(r"\| (\d+) \| (.+) \| (.+) \|")
TEST = re.compile(r"`(?:([\w/]+\.py))?(?:::)?(test_\w+)?`")


def test_every_row_names_a_test_that_exists_or_says_that_it_is_missing() -> None:
    rows = [
        found for line in (HERE / "CONFORMANCE.md").read_text().splitlines() if (found := ROW.match(line))
    ]
    assert [int(row[1]) for row in rows] == list(range(1, 75))
    for row in rows:
        named = TEST.findall(row[3])
        assert named or "**missing**" in row[3], row[0]
        source = ""
        for path, function in named:
            if path:
                place = TESTS / path if "/" in path else HERE / path
                source = place.read_text()
            assert not function or f"def {function}(" in source, (row[1], function)
