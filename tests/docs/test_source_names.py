"""docs/ARCHITECTURE.md and the docstrings mention only files, classes and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.source_names import (
    DOTTED,
    NAME,
    PATH,
    ROOT,
    SOURCE,
    attributes,
    members,
    paths,
    sources,
    texts,
    tree_of,
    words,
)
from tests.test_architecture import ROOMS

PAGE = ROOT / "docs" / "ARCHITECTURE.md"
PAGES = {
    PAGE: 150,
    ROOT / "docs" / "CHANGING.md": 50,
    ROOT / "CONTRIBUTING.md": 5,
}  # names they have at least
LINKING = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"``([^`\n]+)``|:(mod|class|meth|func|attr|data):`~?([\w.]+)`")
# Names that are not of this repository: of Java, SQL and Linux, and placeholders.
FOREIGN = {"Integer", "Long", "Double", "COALESCE", "date_trunc", "IntFlag", "linux/tcp_states.h", "file.py"}
OTHER_FILES = re.compile(r"\.(json|yml|conf|bak|tmp|parquet)$")


def unfenced(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def problem_of(name: str) -> str:
    """Return an error if a class or module of ours lacks the member that the dotted name gives it."""
    first, *rest = name.split(".")
    if first[0].isupper() and first in members().classes:
        for member in rest[:1]:
            if not members().has(first, member):
                return f"{first} has no {member}"
    return ""


def problems_of_module(path: Path) -> list[str]:
    found = []
    for line, text in texts(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        files = set(PATH.findall(text)) - paths() - FOREIGN
        found += [f"{where}: no file {file}" for file in sorted(files)]
        for code, role, target in CODE.findall(text):
            name = (target or code).removesuffix("()")
            if OTHER_FILES.search(name) or not NAME.fullmatch(name) or name.split(".")[0] in FOREIGN:
                continue
            missing = [word for word in name.split(".") if word not in words()]
            if missing:
                found.append(f"{where}: {name}: no code has the word {missing[0]}")
            elif problem := problem_of(name):
                found.append(f"{where}: {name}: {problem}")
            elif role and name.startswith("kerolox.") and not _importable(name):
                found.append(f"{where}: nothing is called {name}")
    return found


def _importable(name: str) -> bool:
    """Tell if ``kerolox.a.b`` is a module, or ``b`` a name in the module ``kerolox.a``."""
    parts = name.split(".")[1:]
    for length in range(len(parts), -1, -1):
        place = SOURCE.joinpath(*parts[:length])
        module = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if module.exists():
            return length == len(parts) or members().has(place.name, parts[length])
    return False


@pytest.mark.parametrize("package", sorted({path.relative_to(SOURCE).parts[0] for path in sources()}))
def test_docstrings_name_what_exists(package: str) -> None:
    within = [path for path in sources() if path.relative_to(SOURCE).parts[0] == package]
    assert [problem for path in within for problem in problems_of_module(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        '"""See there/gone.py."""',
        "x = 1  # like ``Progress.ended``",
        '"""See :mod:`kerolox.gone`."""',
    ],
)
def test_a_name_that_does_not_exist_is_noticed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "module.py"
    path.write_text(text + "\n")
    monkeypatch.setattr("tests.docs.test_source_names.ROOT", tmp_path)
    assert problems_of_module(path)


@pytest.mark.parametrize(("page", "least"), PAGES.items(), ids=lambda page: getattr(page, "stem", ""))
def test_pages_name_what_exists(page: Path, least: int) -> None:
    problems = []
    named = re.findall(r"`([^`\n]+)`", unfenced(page.read_text()))
    assert len(named) > least
    for code in named:
        name = re.sub(r"\(.*\)$", "", code)
        if PATH.fullmatch(name) or name.endswith("/"):
            if name.rstrip("/") not in paths():
                problems.append(f"no file {name}")
        elif NAME.fullmatch(name) and not OTHER_FILES.search(name):
            if missing := [word for word in name.split(".") if word not in words()]:
                problems.append(f"{name}: no code has the word {missing[0]}")
            elif DOTTED.fullmatch(name):
                first, second, *_ = name.split(".")
                if members().knows(first) and not members().has(first, second):
                    problems.append(f"{first} has no {second}")
    assert problems == []


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_titles(page: Path) -> None:
    for file, title in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", unfenced(page.read_text())):
        target = page.parent / file if file else page
        assert target.exists(), file
        assert not title or title in titles(target), f"{file}#{title}"


def titles(page: Path) -> set[str]:
    """The titles of a page, as links spell them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in found}


def test_the_tree_of_the_page_is_the_tree_of_the_source() -> None:
    """Each package and each room has its place in it, and nothing else has one."""
    (tree,) = re.findall(r"^kerolox/\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    shown: dict[str, set[str]] = {}
    package = ""
    for line in tree.splitlines():
        if top := re.match(r"  ((?:\w+/ ?)+)", line):
            names = [name.strip("/") for name in top[1].split()]
            shown |= {name: set() for name in names}
            package, line = names[-1], line[top.end() :]
        shown[package] |= set(re.findall(r"\b(\w+)/(?!\w)", line))
    folders = {path.parent for path in sources()} - {SOURCE}
    packages = {path.name for path in folders if path.parent == SOURCE} | {"core"}
    assert set(shown) == packages
    for name in ROOMS:
        rooms = {path.name for path in folders if path.parent == SOURCE / name}
        assert shown[name] == rooms, f"rooms of {name}"


def test_each_fact_has_one_place() -> None:
    """The table of facts: each row names a file, and attributes that a class in that file has."""
    section = PAGE.read_text().partition("## Where each fact is kept")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    facts = " ".join(fact for fact, *_ in rows)
    for needed in ("role", "ends of the log", "progress", "rights"):
        assert needed in facts, f"no row says where {needed} is kept"
    kept_by: list[str] = []
    for fact, place, keeper, *_ in rows:
        (file,) = re.findall(r"^`([\w/]+\.py)`$", place)
        tree = tree_of(SOURCE / file)
        classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        named = re.findall(r"`(\w+)\.(\w+)`", keeper)
        assert named, fact
        for cls, attribute in named:
            assert cls in classes, f"{fact}: no class {cls} in {file}"
            assert attribute in set(attributes(classes[cls])), f"{fact}: {cls} has no {attribute}"
        kept_by += [f"{cls}.{attribute}" for cls, attribute in named]
    assert len(kept_by) == len(set(kept_by)), "two facts have one place"
