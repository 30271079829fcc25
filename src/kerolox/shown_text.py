"""Text from peers, prepared for display in log lines, errors, remarks and terminals.

A long text is truncated in its middle: the beginning describes the event and the end the next step.
Characters that control a terminal, end a line or change the writing direction are shown as escapes.
"""

from __future__ import annotations

import re
from typing import Final

REMARK_CHARS_MAX: Final = 2048  # of an answer's remark, and of a line of command output
_STEERING = (
    "\\x00-\\x1f\\x7f-\\x9f"  # C0, DEL, C1
    "\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"  # marks, breaks and directions
    "\\ud800-\\udfff"  # surrogates, which a terminal cannot display
)
_ANY_STEERING = re.compile(f"[{_STEERING}]")
_STEERING_IN_LINES = re.compile(f"(?!\n)[{_STEERING}]")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shortened(text: str, chars_max: int = REMARK_CHARS_MAX) -> str:
    """Return the beginning and the end of a long text, with the number of omitted characters."""
    if len(text) <= chars_max:
        return text
    tail = chars_max // 3
    return f"{text[: chars_max - tail]}…({len(text) - chars_max} characters)…{text[len(text) - tail :]}"


def visible(text: str, *, lines: bool = False) -> str:
    """Return the text with control characters escaped; ``lines`` keeps line breaks."""
    if text.isprintable():
        return text
    return (_STEERING_IN_LINES if lines else _ANY_STEERING).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    letter = match[0]
    number = ord(letter)
    return _SHORT.get(letter) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")
