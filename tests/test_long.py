"""Every test that the gate leaves out is run by a target of the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_a_target_runs_every_long_test() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    run = {
        word
        for line in makefile.splitlines()
        if re.search(r"pytest .*-m long\b", line)
        for word in line.split()
        if word.startswith("tests/")
    }
    assert run
    for path in (ROOT / "tests").rglob("test_*.py"):
        if re.search(r"mark\.long\b", path.read_text()):
            name = path.relative_to(ROOT)
            assert {str(name), *map(str, name.parents)} & run, f"no target runs the long tests of {name}"
