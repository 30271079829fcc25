"""The reference of all keys in docs/PIPELINES.md, made of the structs that files are decoded to.

``python -m tests.docs.pipeline_keys`` writes it anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from kerolox.pipeline.flows import definition as d

PAGE = Path(__file__).parents[2] / "docs" / "PIPELINES.md"
PLACE = re.compile(r"(?<=<!-- keys -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)

# In the order of the page: where a part stands, and what it is decoded to.
PARTS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("The file", d.Pipeline),
    ("`sources`: a topic", d.TopicSource),
    ("`body` of a topic", d.Body),
    ("`sources`: store files", d.StoreSource),
    ("`sources`: a table of a lake", d.ArchiveSource),
    ("`sources`: anything Spark reads", d.SparkSource),
    ("`watermark` of sources and steps", d.Watermark),
    ("`steps`: SQL", d.SqlStep),
    ("`steps`: Python", d.PythonStep),
    ("`sinks`: a topic", d.TopicSink),
    ("`sinks`: a table of a lake", d.LakeSink),
    ("`sinks`: anything Spark writes", d.SparkSink),
    ("`bad_rows`", d.LakeTable),
    ("`checks`", d.Check),
    ("`rows` of a check", d.RowCount),
    ("`fresh` of a check", d.Fresh),
    ("`archives`", d.ArchiveFlow),
    ("`retry`", d.Retry),
    ("`spark`", d.SparkSettings),
)


def rendered() -> str:
    lines: list[str] = []
    for title, kind in PARTS:
        lines += [f"#### {title}", "", "| key | value | default | |", "|---|---|---|---|"]
        hints = get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            hint = hints[field.name]
            cells = (f"`{field.encode_name}`", value_text(hint), default_text(field), about(hint))
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def about(hint: Any) -> str:
    """The outermost description: that of this key, not of its type."""
    metas = hint.__metadata__ if get_origin(hint) is Annotated else ()
    return next((meta.description for meta in reversed(metas) if meta.description), "")


def value_text(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return value_text(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    parts = [part for part in get_args(hint) if part is not type(None)]
    if type(None) in get_args(hint):
        return value_text(parts[0])
    if get_origin(hint) is list:
        return "a list"
    if get_origin(hint) is dict or (isinstance(hint, type) and issubclass(hint, d.Entry)):
        return "keys of its own" if get_origin(hint) is not dict else "names and values"
    names = {
        str: "text",
        int: "a number",
        bool: "true or false",
        d.Span: "a span of time",
        d.Trigger: "a trigger",
    }
    return names.get(hint, str(hint))


def default_text(field: Any) -> str:
    if field.required:
        return "needed"
    default = field.default if field.default is not msgspec.NODEFAULT else None
    if default in (None, "") or isinstance(default, d.Entry):
        return ""
    if isinstance(default, d.Trigger):
        return f"`{default.text()}`"
    if isinstance(default, d.Span):
        return f"`{default:g}s`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def written() -> str:
    """The page with its reference as it must be."""
    return PLACE.sub(lambda _: rendered(), PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
