"""Text that peers wrote, as people see it: in log lines, in errors and remarks, on a terminal.

Two rules. A long text is cut in its middle: it begins with what happened and ends with the next step.
Characters that steer a terminal, end a line or turn the direction of writing are shown as escapes.
"""

from __future__ import annotations

import re
from typing import Final

REMARK_CHARS_MAX: Final = 2048  # of an answer, and of a line of a command
_STEERING = (
    "\\x00-\\x1f\\x7f-\\x9f"  # C0, DEL, C1
    "\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"  # marks, breaks and directions
    "\\ud800-\\udfff"  # half characters, which no terminal can be sent
)
_ANY_STEERING = re.compile(f"[{_STEERING}]")
_STEERING_IN_LINES = re.compile(f"(?!\n)[{_STEERING}]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shortened(text: str, chars_max: int = REMARK_CHARS_MAX) -> str:
    """Return the beginning and the end of a text that is longer, and how much was left out."""
    if len(text) <= chars_max:
        return text
    tail = chars_max // 3
    return f"{text[: chars_max - tail]}…({len(text) - chars_max} characters)…{text[len(text) - tail :]}"


def visible(text: str, *, lines: bool = False) -> str:
    """Return the text with escapes for characters that steer a terminal; ``lines`` keeps line breaks."""
    if text.isprintable():
        return text
    return (_STEERING_IN_LINES if lines else _ANY_STEERING).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    number = ord(letter)
    return _SHORT.get(letter) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")
