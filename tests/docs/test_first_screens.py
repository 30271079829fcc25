"""The first screen of a guide says for whom it is, and shows a task with what comes out."""

from __future__ import annotations

import re

import pytest

from tests.docs.source_names import ROOT

SCREEN = 45  # lines
GUIDES = ("CLIENT", "OPERATIONS", "PIPELINES", "SPARK")
OTHERS = ("CHANGING", "GRPC", "PERFORMANCE", "REQUESTS", "SETTINGS")


@pytest.mark.parametrize("name", [*GUIDES, *OTHERS])
def test_it_says_for_whom_the_page_is(name: str) -> None:
    title, _, first, *_ = (ROOT / "docs" / f"{name}.md").read_text().splitlines()
    assert title.startswith("# ")
    assert first.startswith("For ")


@pytest.mark.parametrize("name", GUIDES)
def test_a_task_comes_first_with_its_lines_and_what_comes_out(name: str) -> None:
    screen = "\n".join((ROOT / "docs" / f"{name}.md").read_text().splitlines()[:SCREEN])
    kinds = re.findall(r"^```(\w+)$", screen, re.MULTILINE)
    assert {"python", "console"} & set(kinds)
    assert "text" in kinds


@pytest.mark.parametrize("name", GUIDES)
def test_its_index_leads_to_every_section(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    unfenced = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    sections = re.findall(r"^## (.*)$", unfenced, re.MULTILINE)
    assert len(sections) > 8
    linked = set(re.findall(r"\]\(#([\w-]+)\)", text))
    lacking = [
        title for title in sections if re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") not in linked
    ]
    assert lacking == []
