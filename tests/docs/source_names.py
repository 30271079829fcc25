"""Paths and names of this repository, as texts mention them: shortened to what a reader needs."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "kerolox"
FOLDERS = ("src", "tests", "bench", "docs", "examples")
SUFFIXES = {".py", ".pyi", ".md", ".c", ".h", ".json", ".txt", ".java", ".png", ".svg"}

PATH = re.compile(r"(?<![\w/.*<{:~-])((?:[\w-]+/)*[\w-]+\.(?:py|pyi|md|c|h))\b(?![\w(/])")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def paths() -> frozenset[str]:
    """Every file and folder, each under all of its endings: ``a/b.py`` is ``b.py`` too."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    kept = [path for path in found if path.suffix in SUFFIXES or path.is_dir()]
    whole = [path.relative_to(ROOT) for path in kept if "__pycache__" not in path.parts]
    whole += [path.relative_to(ROOT) for path in ROOT.iterdir()]
    return frozenset("/".join(path.parts[at:]) for path in whole for at in range(len(path.parts)))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _documented(tree: ast.Module) -> Iterator[tuple[int, ast.Constant]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Definition) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.lineno, first.value


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a module, each with the line where it begins."""
    for line, constant in _documented(tree_of(path)):
        yield line, str(constant.value)
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@cache
def words() -> frozenset[str]:
    """Every identifier of the code, and every word of its strings: names of settings, columns, fields."""
    found = {*keyword.kwlist, *dir(builtins)}
    for folder in ("src", "tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(path.relative_to(ROOT).with_suffix("").parts)
            tree = tree_of(path)
            skipped = {id(constant) for _, constant in _documented(tree)}
            for node in ast.walk(tree):
                if id(node) not in skipped:
                    found |= _words_of(node)
    for suffix in ("*.[ch]", "*.pyi", "*.txt"):
        for path in SOURCE.rglob(suffix):
            found |= set(re.findall(r"\w+", path.read_text()))
    return frozenset(found)


def _words_of(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return {name}
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.keyword(arg=str(name)):
            return {name}
        case ast.alias(name=name):
            return set(name.split("."))
        case ast.Constant(value=str(text)):
            return set(re.findall(r"\w+", text))
        case ast.Constant(value=bytes(data)):
            return set(re.findall(r"\w+", data.decode("latin-1")))
    return set()


class Members:
    """Attributes of classes and contents of modules, by name. Equal names are merged."""

    def __init__(self) -> None:
        self.classes: dict[str, set[str]] = defaultdict(set)
        self.modules: dict[str, set[str]] = defaultdict(set)
        self._bases: dict[str, set[str]] = defaultdict(set)
        for path in sources():
            tree = tree_of(path)
            here = self.modules[path.stem if path.stem != "__init__" else path.parent.name]
            if path.stem == "__init__":
                here |= {beside.stem for beside in path.parent.iterdir()}
            for node in ast.walk(tree):
                match node:
                    case ast.ClassDef():
                        here.add(node.name)
                        self.classes[node.name] |= set(attributes(node))
                        self._bases[node.name] |= {_last_name(base) for base in node.bases}
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name):
                        here.add(name)
                    case ast.alias():
                        here.add((node.asname or node.name).split(".")[0])

    def has(self, name: str, member: str) -> bool:
        """Tell if the class, one of its bases, or the module has the member."""
        if name in self.modules and member in self.modules[name]:
            return True
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            one = waiting.pop()
            if member in self.classes.get(one, ()):
                return True
            seen.add(one)
            waiting += self._bases.get(one, set()) - seen
        return False

    def knows(self, name: str) -> bool:
        return name in self.classes or name in self.modules


@cache
def members() -> Members:
    return Members()


def attributes(cls: ast.ClassDef) -> Iterator[str]:
    """Attributes, methods and fields that the body of a class defines."""
    for node in ast.walk(cls):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Constant(value=str(name)):  # __slots__
                yield name


def _last_name(base: ast.expr) -> str:
    match base:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _last_name(value)
    return ""
