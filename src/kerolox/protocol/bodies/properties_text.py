"""Settings as text: the ``.properties`` syntax of Java, in bodies and in configuration files.

A line is a key, then ``=``, ``:`` or space, then a value. ``#`` and ``!`` start comments, a backslash at
the end of a line joins the next one to it, and elsewhere escapes: ``\\t \\n \\r \\f``, ``\\u0041``, and any
other character stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from kerolox.errors import ProtocolError

__all__ = ["edit_properties", "read_properties", "write_properties"]

_LINE_END = re.compile(r"\r\n|\n|\r")
_BLANK = " \t\f"
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*+", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|\Z)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read_properties(text: str | bytes) -> dict[str, str]:
    """All settings of the text, in their order; of two with one key the last counts."""
    if not isinstance(text, str):
        text = _decoded(text)[0]
    return {entry.key: entry.value for entry in _entries(text) if entry.key is not None}


def edit_properties(text: bytes, changes: Mapping[str, object]) -> bytes:
    """Set keys in the text of a file. Comments, blank lines, order, encoding and all other settings stay.

    A key that occurs is changed on its last line, and its earlier lines are removed; new keys are appended.
    """
    decoded, encoding = _decoded(text)
    end = "\r\n" if "\r\n" in decoded else "\n"
    entries = _entries(decoded)
    last = {entry.key: place for place, entry in enumerate(entries) if entry.key in changes}
    lines: list[str] = []
    for place, entry in enumerate(entries):
        if entry.key is None or entry.key not in changes:
            lines += entry.lines
        elif last[entry.key] == place:
            lines.append(_line(entry.key, changes[entry.key]))
    while lines and not lines[-1]:
        lines.pop()
    lines += [_line(key, value) for key, value in changes.items() if key not in last]
    return "".join(line + end for line in lines).encode(encoding)


class _Entry(NamedTuple):
    """A setting of a text, or, without a key, a comment or a blank line."""

    lines: list[str]  # as they stand, without their ends
    key: str | None = None
    value: str = ""


def _entries(text: str) -> list[_Entry]:
    found: list[_Entry] = []
    lines = iter(enumerate(_LINE_END.split(text.removeprefix("\ufeff")), start=1))
    for number, line in lines:
        logical = line.lstrip(_BLANK)
        if not logical or logical[0] in "#!":
            found.append(_Entry([line]))
            continue
        raw, pieces = [line], [logical]
        while _joins_next(pieces[-1]):
            pieces[-1] = pieces[-1][:-1]
            following = next(lines, (0, ""))[1]
            raw.append(following)
            pieces.append(following.lstrip(_BLANK))
        logical = "".join(pieces)
        key = _KEY.match(logical)
        assert key is not None  # it matches nothing, too
        separator = _SEPARATOR.match(logical, key.end())
        assert separator is not None
        value = _unescaped(logical[separator.end() :], number)
        found.append(_Entry(raw, _unescaped(key[0], number), value))
    return found


def write_properties(settings: Mapping[str, object]) -> str:
    """One ``key=value`` line each. Escapes only where a reader would otherwise see something else.

    What is not ASCII is escaped: Java reads the bytes as Latin-1.
    """
    return "".join(_line(key, value) + "\n" for key, value in settings.items() if value is not None)


def _line(key: str, value: object) -> str:
    return f"{_escaped(key, in_key=True)}={_escaped(_text(value), in_key=False)}"


def _decoded(data: bytes) -> tuple[str, str]:
    """Return the text and its encoding."""
    try:
        return bytes(data).decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return bytes(data).decode("latin-1"), "latin-1"


def _joins_next(line: str) -> bool:
    backslashes = len(line) - len(line.rstrip("\\"))
    return backslashes % 2 == 1


def _unescaped(text: str, line: int) -> str:
    if "\\" not in text:
        return text

    def replacement(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise ProtocolError(f"properties line {line}: four hexadecimal digits must follow \\u")
        if escape[:1] == "u":
            return chr(int(escape[1:], 16))
        return _ESCAPED.get(escape, escape)

    value = _ESCAPE.sub(replacement, text)
    if _LONE_SURROGATE.search(value):
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


_NEEDS_ESCAPE = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def _escaped(text: str, *, in_key: bool) -> str:
    if text.isascii() and text.isalnum():
        return text
    out: list[str] = []
    for place, character in enumerate(text):
        if character in _NEEDS_ESCAPE:
            out.append(_NEEDS_ESCAPE[character])
        elif (character == " " and (in_key or place == 0)) or (in_key and character in "=:#!"):
            out.append("\\" + character)
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            out += [f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2)]
    return "".join(out)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
