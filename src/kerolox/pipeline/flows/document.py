"""A YAML file as values with line numbers and with variables replaced.

``${NAME}`` is replaced by ``--set NAME=value`` or the environment, ``${NAME:-text}`` has a default, ``$${``
gives ``${``, and ``${file:PATH}`` is the content of a file. Secrets must come from the environment or from
files: an option with the name of a secret may not contain it literally, neither in the file nor on the
command line. Values filled in for such options are hidden in all output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kerolox.client.environment import HIDDEN
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from yaml import Node

Place = tuple[str, ...]

BYTES_MAX: Final = 1 << 20
NODES_MAX: Final = 20_000  # bound on nested YAML aliases, which grow exponentially
SECRETIVE: Final = ("secret", "password", "passwd", "token", "credential")
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Problem:
    """One problem with its place: ``pipeline.yaml:14: sinks.table.format: ...``."""

    def __init__(self, file: str, line: int, place: Place, text: str, *, level: str = "error") -> None:
        self.file = file
        self.line = line
        self.place = ".".join(place)
        self.text = text
        self.level = level  # "warning": the pipeline can run nevertheless

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        return where + (f"{self.place}: " if self.place else "") + self.text

    def document(self) -> dict[str, Any]:
        return {
            "file": self.file, "line": self.line, "path": self.place, "level": self.level, "text": self.text,
        }  # fmt: skip


class PipelineInvalid(KeroloxError):
    """Invalid pipeline file, with all problems found."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


class Document:
    """Values of a file, and the line of each."""

    def __init__(
        self, file: str | os.PathLike[str], given: Mapping[str, str], environment: Mapping[str, str]
    ):
        self.path = Path(file)
        self.file = str(file)
        self.problems: list[Problem] = []
        self.broken: set[str] = set()  # lower-case names of entries that cannot be read
        self.lines: dict[Place, int] = {}
        self.secrets: set[str] = set()
        self.used: set[str] = set()
        self._given = given
        self._environment = environment
        self._nodes = 0
        self.value: Any = self._read()
        for name in given:
            if name not in self.used:
                self.add((), f"--set {name}: the file has no ${{{name}}}")

    @property
    def folder(self) -> Path:
        return self.path.parent

    def line_of(self, place: Place) -> int:
        """Return the line of a value, or of the nearest value around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)

    def problem(self, place: Place, text: str, *, level: str = "error") -> Problem:
        return Problem(self.file, self.line_of(place), place, self.hide(text), level=level)

    def add(self, place: Place, text: str, *, level: str = "error") -> None:
        self.problems.append(self.problem(place, text, level=level))

    @property
    def has_errors(self) -> bool:
        return any(problem.level == "error" for problem in self.problems)

    def hide(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text

    # --- YAML -------------------------------------------------------------------------------------------

    def _read(self) -> Any:
        import yaml

        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise KeroloxError(f"{self.file} cannot be read: {error.strerror or error}") from None
        if len(data) > BYTES_MAX:
            raise KeroloxError(f"{self.file} has {len(data)} bytes; a pipeline has at most {BYTES_MAX}")
        try:
            loader = yaml.SafeLoader(data)
            root = loader.get_single_node()
            if root is None:
                raise PipelineInvalid([Problem(self.file, 0, (), "the file is empty")])
            return self._value(loader, root, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 0
            said = " ".join(filter(None, (error.context, error.problem)))
            raise PipelineInvalid([Problem(self.file, line, (), f"this is not YAML: {said}")]) from None
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise PipelineInvalid([Problem(self.file, 0, (), f"this is not YAML: {error}")]) from None

    def _value(self, loader: Any, node: Node, place: Place) -> Any:
        import yaml

        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise PipelineInvalid([Problem(self.file, 0, place, f"more than {NODES_MAX} values")])
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            own: set[str] = set()
            for key, _ in node.value:
                if key.value in own:
                    line = key.start_mark.line + 1
                    text = f"the key {key.value} occurs twice"
                    self.problems.append(Problem(self.file, line, (*place, str(key.value)), text))
                own.add(key.value)
            loader.flatten_mapping(node)
            found = {}
            for key, value in node.value:
                name = str(key.value)
                self.lines[(*place, name)] = key.start_mark.line + 1
                found[name] = self._value(loader, value, (*place, name))
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self._value(loader, each, (*place, str(at))) for at, each in enumerate(node.value)]
        value = loader.construct_object(node)
        return self._filled(value, place) if isinstance(value, str) else self._plain(value, place)

    def _plain(self, value: Any, place: Place) -> Any:
        if _is_secretive(place) and value is not None:
            self._written_out(place)
        return value

    # --- variables --------------------------------------------------------------------------------------

    def _filled(self, text: str, place: Place) -> str:
        secretive = _is_secretive(place)
        safe = False  # True: a part came from the environment or a file

        def fill(found: re.Match[str]) -> str:
            nonlocal safe
            if found[1] is None:
                return "${"
            value, is_safe = self._variable(found[1], place, secretive)
            safe = safe or is_safe
            return value

        value = _VARIABLE.sub(fill, text)
        if secretive and not safe and value:
            self._written_out(place)
        return value

    def _variable(self, inside: str, place: Place, secretive: bool) -> tuple[str, bool]:
        if inside.startswith("file:"):
            path = self.folder / inside.removeprefix("file:").strip()
            try:
                value = path.read_text().strip()
            except (OSError, UnicodeError) as error:
                self.add(place, f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")
                return "", True
            self._hide(value)
            return value, True
        name, has_default, default = inside.partition(":-")
        if not _NAME.fullmatch(name):
            self.add(place, f"${{{inside}}}: expected ${{NAME}}, ${{NAME:-default}} or ${{file:PATH}}")
            return "", True
        self.used.add(name)
        if name in self._given:
            if secretive:
                self.add(place, f"--set {name}: other users see command lines. Set it in the environment")
            return self._given[name], secretive
        if name in self._environment:
            if secretive:
                self._hide(self._environment[name])
            return self._environment[name], True
        if not has_default:
            self.add(place, f"{name} is not set. Use --set {name}=..., or set it in the environment")
            return "", True
        return default, False

    def _hide(self, secret: str) -> None:
        if secret:
            self.secrets.add(secret)

    def _written_out(self, place: Place) -> None:
        self.add(
            place, "this is a literal secret. Use ${NAME} and set it in the environment, or use ${file:PATH}"
        )


def _is_secretive(place: Place) -> bool:
    """Return True if the key's name means a secret. Keys for paths of secret files do not."""
    name = place[-1].lower() if place else ""
    return any(word in name for word in SECRETIVE) and not name.endswith(("file", "path"))
