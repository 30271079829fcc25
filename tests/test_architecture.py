"""Imports point the way the data flows, and the tree keeps its habits."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "kerolox"

# Who may import whom. Modules directly below kerolox (errors, clock, options, ...) are one layer, "base".
ALLOWED = {
    "base": {"base", "protocol"},
    "protocol": {"protocol", "errors"},
    "net": {"net", "protocol", "base"},
    "nameserver": {"nameserver", "net", "protocol", "base"},
    "store": {"store", "protocol", "base"},
    "broker": {"broker", "store", "replication", "net", "protocol", "base"},
    "replication": {"replication", "store", "net", "protocol", "base"},
    "client": {"client", "net", "protocol", "base"},
    "spark": {"spark", "client", "store", "protocol", "base"},
    "pipeline": {"pipeline", "spark", "client", "store", "protocol", "base"},
    "testing": None,  # on top of everything
    "cli": None,
}
# protocol does no I/O.
NO_IO = {
    "asyncio",
    "socket",
    "ssl",
    "selectors",
    "threading",
    "os",
    "pathlib",
    "tempfile",
    "subprocess",
}
LINES_MAX = 520  # about 400 is the habit; a module that is honestly one idea may be longer

MODULES = sorted(SOURCE.rglob("*.py"))


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (SOURCE / parts[1]).is_dir() else "base"


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module == "kerolox":
                found |= {f"kerolox.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_flow(path: Path) -> None:
    module = "kerolox." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    # The entry point and the front door for users lead into every house.
    top = path.parent == SOURCE and path.name in ("__main__.py", "__init__.py", "blocking.py")
    layer = "cli" if top else layer_of(module)
    allowed = ALLOWED[layer]
    for name in imports_of(path):
        if name.split(".")[0] != "kerolox":
            if layer == "protocol":
                assert name.split(".")[0] not in NO_IO, f"{module} does I/O: imports {name}"
            continue
        if allowed is None or name == "kerolox":
            continue
        target = layer_of(name)
        if layer == "protocol" and target == "base":
            assert name in ("kerolox.errors", "kerolox.compiled"), f"{module} imports {name}"
        else:
            assert target in allowed, f"{module} ({layer}) imports {name} ({target}), against the flow"


def test_nobody_imports_cli_or_testing() -> None:
    for path in MODULES:
        layer = path.relative_to(SOURCE).parts[0]
        if layer in ("cli", "testing", "__main__.py"):
            continue
        for name in imports_of(path):
            assert not f"{name}.".startswith(("kerolox.cli.", "kerolox.testing.")), f"{path} imports {name}"


def test_modules_stay_readable() -> None:
    long = {
        str(p.relative_to(SOURCE)): n for p in MODULES if (n := len(p.read_text().splitlines())) > LINES_MAX
    }
    assert not long, f"split what holds two nouns: {long}"


def test_names_have_found_their_noun() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert not node.name.endswith(("Manager", "Helper", "Util", "Utils", "Impl", "Factory")), (
                    f"{path}: {node.name}"
                )
