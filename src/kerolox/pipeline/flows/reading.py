"""Reader of pipeline files, with errors that name file, line and key."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

from kerolox.pipeline.flows.definition import (
    ALONE,
    KINDS,
    LAKES,
    NAME,
    ArchiveFlow,
    ArchiveSource,
    Check,
    Entry,
    LakeSink,
    LakeTable,
    Pipeline,
    SparkSink,
    TopicSource,
    decode_own,
)
from kerolox.pipeline.flows.document import Document, PipelineInvalid, Place

# Formats of Spark and common extensions, which are no misspelled lake formats.
SPARKS: Final = frozenset(
    {
        "json", "csv", "orc", "text", "avro", "xml", "binaryfile", "jdbc", "console", "noop", "memory",
        "rate", "kafka", "socket", "hudi", "mongodb",
    }
)  # fmt: skip
_AT: Final = re.compile(r"(?s)(.*?)(?: - at `\$(.*)`)?")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_ENUM: Final = re.compile(r"Invalid enum value '(.*)'")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")


def read_pipeline(
    file: str | os.PathLike[str],
    given: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Pipeline, Document]:
    """Return the definition and its document. Raises PipelineInvalid with all problems."""
    pipeline, document = read_loosely(file, given, environment)
    if pipeline is None or document.has_errors:
        raise PipelineInvalid(document.problems)
    return pipeline, document


def read_loosely(
    file: str | os.PathLike[str],
    given: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Pipeline | None, Document]:
    """Read the valid parts of a definition, so that problems beyond the file can be found as well."""
    document = Document(file, given or {}, os.environ if environment is None else environment)
    return _decoded(document), document


def _decoded(document: Document) -> Pipeline | None:
    value = document.value
    if not isinstance(value, dict):
        document.add((), "expected keys such as name, storage, sources and sinks")
        return None
    hints = get_type_hints(Pipeline, include_extras=True)
    known = Pipeline.__struct_fields__
    for key in value.keys() - set(known):
        document.add((key,), f"unknown key{did_you_mean(key, known)}")
    parts: dict[str, Any] = {}
    for key in known:
        if key in KINDS:
            parts[key] = _entries(document, key, value.get(key))
        elif key in value:
            found = _convert(document, value[key], hints[key], (key,))
            if found is not None:
                parts[key] = found
    for key in ("name", "storage"):
        if key not in value:
            document.add((), f"the key {key} is missing")
        elif isinstance(parts.get(key), str) and not parts[key].strip():
            document.add((key,), "is empty")
    if isinstance(parts.get("name"), str) and parts["name"] and not NAME.fullmatch(parts["name"]):
        document.add(("name",), f"{parts['name']!r}: expected letters, digits and _, with a letter first")
    if not value.get("sinks") and not value.get("archives"):
        document.add((), "the pipeline has no sinks and no archives. Add one")
    for key in ("name", "storage"):
        if not isinstance(parts.get(key), str):
            parts[key] = ""
    pipeline = Pipeline(**parts)
    _agree(document, pipeline)
    return pipeline


def _entries(document: Document, section: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        document.add((section,), f"expected names, each with its own keys, not {value!r}")
        return {}
    found: dict[str, Any] = {}
    for name, entry in value.items():
        place = (section, name)
        if not NAME.fullmatch(name):
            document.add(
                place, f"{name!r} is not a valid name: expected letters, digits and _, with a letter first"
            )
            continue
        if not isinstance(entry, dict):
            document.add(place, f"expected keys, not {entry!r}")
            continue
        kind = _kind(document, section, entry, place)
        made = None if kind is None else _convert(document, entry, kind, place)
        if made is not None:
            found[name] = made
    document.broken.update(name.lower() for name in value if name not in found)
    return found


def _kind(document: Document, section: str, entry: Mapping[str, Any], place: Place) -> type[Entry] | None:
    if section in ALONE:
        return ALONE[section]
    for key, kind in KINDS[section]:
        if key not in entry:
            continue
        if kind is SparkSink:
            format = str(entry["format"])
            if format.lower() in LAKES:
                return LakeSink
            slip = (
                [] if format.lower() in SPARKS else difflib.get_close_matches(format.lower(), LAKES, 1, 0.75)
            )
            if slip:
                document.add((*place, "format"), f'"{format}": did you mean "{slip[0]}"?')
                return None
        return kind
    kinds = [key for key, _ in KINDS[section]]
    document.add(place, f"the kind is missing. Add one of the keys {', '.join(kinds)}")
    return None


def _convert(document: Document, value: Any, kind: Any, place: Place) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=decode_own)
    except msgspec.ValidationError as error:
        _explain(document, str(error), value, kind, place)
        return None


def _explain(document: Document, text: str, value: Any, kind: Any, place: Place) -> None:
    """Add a message of msgspec to the problems, in terms of the file."""
    found = _AT.fullmatch(text)
    assert found is not None
    said, below = found[1], tuple(re.findall(r"[A-Za-z_]\w*", found[2] or ""))
    where = (*place, *below)
    inner = _type_at(kind, below)
    if unknown := _UNKNOWN.fullmatch(said):
        fields = [field.encode_name for field in msgspec.structs.fields(inner)] if inner is not None else []
        near = did_you_mean(unknown[1], fields) or f": the keys are {', '.join(fields)}"
        document.add((*where, unknown[1]), f"unknown key{near}")
    elif missing := _MISSING.fullmatch(said):
        document.add(where, f"the key {missing[1]} is missing")
    elif wrong := _ENUM.fullmatch(said):
        choices = _choices(inner)
        near = did_you_mean(wrong[1], choices).lstrip(":") or f" expected {', '.join(choices)}"
        document.add(where, f'"{wrong[1]}":{near}')
    else:
        document.add(where, said[:1].lower() + said[1:] if said.startswith("Expected") else said)


def _bare(kind: Any) -> Any:
    """Return a type without annotations and without ``| None``."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    parts = [part for part in get_args(kind) if part is not type(None)]
    if type(None) in get_args(kind) and len(parts) == 1:
        return _bare(parts[0])
    return kind


def _type_at(kind: Any, below: Iterable[str]) -> Any:
    """Return the type of a nested value."""
    kind = _bare(kind)
    for name in below:
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return None
        for field in msgspec.structs.fields(kind):
            if field.encode_name == name:
                kind = _bare(get_type_hints(kind, include_extras=True)[field.name])
                break
        else:
            return None
    return kind


def _choices(kind: Any) -> tuple[str, ...]:
    return tuple(map(str, get_args(_bare(kind))))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), list(known), 1, 0.6)
    return f': did you mean "{near[0]}"?' if near else ""


# --- rules across keys --------------------------------------------------------------------------------


def _agree(document: Document, pipeline: Pipeline) -> None:
    """Check keys that require or exclude each other."""
    for name, source in pipeline.sources.items():
        if isinstance(source, TopicSource) and bool(source.topics_named()) == bool(source.topic_pattern):
            document.add(("sources", name), "expected either topic (or topics) or topic_pattern")
        elif isinstance(source, ArchiveSource):
            _agree_archive(document, source, ("sources", name))
    seen: dict[str, str] = {}
    for section in ("sources", "steps", "sinks", "archives"):
        for name in getattr(pipeline, section):
            other = seen.setdefault(name.lower(), section)
            if other != section and not {section, other} <= {"sinks", "sources", "steps"} - {"sinks"}:
                continue
            if other != section:
                document.add((section, name), f"{other} has the same name. Give each table its own name")
    flows = [*pipeline.sinks, *pipeline.archives]
    for name in {name for name in flows if flows.count(name) > 1}:
        document.add(("archives", name), "sinks has the same name. Give each flow its own name")
    for name, check in pipeline.checks.items():
        _agree_check(document, pipeline, name, check)
    for name, sink in pipeline.sinks.items():
        if isinstance(sink, LakeTable):
            _agree_lake(document, sink, ("sinks", name))
    for name, archive in pipeline.archives.items():
        _agree_lake(document, archive, ("archives", name))
        for key, least in (("every", ArchiveFlow.EVERY_S_MIN), ("expire", ArchiveFlow.EXPIRE_S_MIN)):
            given = getattr(archive, key)
            if given is not None and given < least:
                document.add(("archives", name, key), f"{given:g} s: expected {least:g} s or more")
    if pipeline.bad_rows is not None:
        _agree_lake(document, pipeline.bad_rows, ("bad_rows",))
        if pipeline.bad_rows.partition_by:
            document.add(("bad_rows", "partition_by"), "bad_rows cannot be partitioned. Remove partition_by")


def _agree_check(document: Document, pipeline: Pipeline, name: str, check: Check) -> None:
    place = ("checks", name)
    kinds = [kind for kind in Check.KINDS if getattr(check, kind)]
    if len(kinds) != 1:
        document.add(place, f"expected one of {', '.join(Check.KINDS)}; found {', '.join(kinds) or 'none'}")
        return
    sink = pipeline.sinks.get(check.of)
    if sink is None and check.of.lower() not in document.broken:
        near = did_you_mean(check.of, pipeline.sinks) or f". The sinks are {', '.join(pipeline.sinks)}"
        document.add((*place, "of"), f'there is no sink "{check.of}"{near}')
    elif isinstance(sink, SparkSink) and sink.stream:
        document.add((*place, "of"), f"{check.of} has stream: true, so it cannot have checks")
    if check.then == "set_aside":
        if check.kind not in Check.OF_ROWS:
            document.add(
                (*place, "then"),
                f"set_aside needs a check of rows ({', '.join(Check.OF_ROWS)}); {check.kind} is about "
                "the whole batch",
            )
        if pipeline.bad_rows is None:
            document.add((*place, "then"), "set_aside needs bad_rows, the table for rows set aside")


def _agree_archive(document: Document, source: ArchiveSource, place: Place) -> None:
    if source.format == "iceberg":
        if not re.fullmatch(r"[\w-]+(\.[\w-]+)+", source.archive):
            document.add((*place, "archive"), f"{source.archive!r}: expected space.name, for Iceberg")
        if not source.catalog and not source.path:
            document.add(place, "expected catalog (uri: ...) or path, where the Iceberg table is")
        return
    for key in ("path", "catalog"):
        if getattr(source, key):
            document.add((*place, key), f"only Iceberg has it; this is {source.format}")


def _agree_lake(document: Document, table: LakeTable | ArchiveFlow, place: Place) -> None:
    if table.format == "iceberg":
        if not re.fullmatch(r"[\w-]+(\.[\w-]+)+", table.table):
            document.add((*place, "table"), f"{table.table!r}: expected space.name, for Iceberg")
        if not table.catalog and not table.path:
            document.add(place, "expected catalog (uri: ...) or path, where the Iceberg table is")
        return
    if not table.path:
        document.add(place, "the key path is missing")
    for key in ("table", "catalog"):
        if getattr(table, key):
            document.add((*place, key), f"only Iceberg has it; this is {table.format}")
