"""Options: one typed dataclass per role, merged from defaults < file < environment < flags.

The file is RocketMQ's properties file with RocketMQ's keys, so an existing ``broker.conf`` or
``namesrv.conf`` can be used unchanged. The error for a wrong value names the key, the value, its source and
the expected value; an unknown key is a warning. The few options marked ``changeable`` may change at run time,
only through :func:`change`. A RocketMQ setting for a feature that the role lacks is rejected, because its
users rely on it (:class:`Absent`).
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from kerolox.errors import InvalidRequest, NotThere, OptionError, nearest
from kerolox.protocol.bodies.properties_text import read_properties, write_properties

log = logging.getLogger(__name__)

T = TypeVar("T", bound="Options")

CHANGED_AT_ONCE_MAX = 1000  # per request
TEXT_LENGTH_MAX = 4096
KEY_SHOWN_MAX = 100  # characters of an unknown key in a log line
ENVIRONMENT_PREFIX = "KEROLOX_"
NO_EFFECT = "a setting of RocketMQ that does nothing here"
_WITHOUT_EFFECT = f"option_without_effect key=%r source=%s reason='{NO_EFFECT}'"


@cache
def _rocketmqs() -> frozenset[str]:
    text = files("kerolox").joinpath("rocketmq_settings.txt").read_text("ascii")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def meant(key: str, known: Iterable[str]) -> str:
    """Return a question for the end of an error, with the setting that ``key`` may have meant."""
    own = list(known)
    exact = [name for name in (*own, *_rocketmqs()) if name.lower() == key.lower()]
    if not exact:
        return nearest(key, own)
    return f" Did you mean {exact[0]}{'' if exact[0] in own else f', {NO_EFFECT}'}?"


def is_rocketmqs(key: str) -> bool:
    """Return whether RocketMQ's name server, broker or controller has this setting, in any version from 4.4
    to 5.5."""
    return key in _rocketmqs()


@dataclass(frozen=True)
class Form:
    """Syntax of an option that is text."""

    pattern: str  # must match the whole text
    expected: str  # description of the syntax, for errors


def option(
    default: Any,
    about: str,
    *,
    key: str | None = None,
    low: float | None = None,
    high: float | None = None,
    changeable: bool = False,
    environment: str | None = None,
    secret: bool = False,
    form: Form | None = None,
) -> Any:
    """Declare a field of an Options class. ``key`` is its name in RocketMQ's files; None: the camelCase
    name."""
    return dataclasses.field(
        default=default,
        metadata={
            "about": about,
            "key": key,
            "low": low,
            "high": high,
            "changeable": changeable,
            "environment": environment,
            "secret": secret,
            "form": form,
        },
    )


@dataclass(frozen=True)
class Absent:
    """A RocketMQ setting for a feature that a role lacks."""

    harmless: tuple[str, ...]  # values that do not request the feature; the last is the default
    why: str

    def is_asked_for(self, text: str) -> bool:
        return text.strip().lower() not in {value.lower() for value in self.harmless}


@dataclass
class Options:
    """Base of a role's options."""

    ROLE: ClassVar[str] = ""
    ABSENT: ClassVar[Mapping[str, Absent]] = {}  # by key; may contain the role's own options

    def chosen(self) -> Mapping[str, object]:
        """Return effective values, by attribute name, of options that were left open."""
        return {}


@dataclass(frozen=True)
class Spec:
    """Metadata of one option."""

    name: str
    key: str
    kind: Any
    default: Any
    about: str
    low: float | None
    high: float | None
    changeable: bool
    environment: str
    secret: bool
    form: Form | None = None

    def parse(self, text: object, source: str = "") -> Any:
        """Convert text to a checked value. Raises OptionError."""
        kind, optional = _unwrap(self.kind)
        if not isinstance(text, str):
            if text is None and optional:
                return None
            if isinstance(text, kind) and not (kind is int and isinstance(text, bool)):
                return self._check(text, source)
            text = str(text)
        text = text.strip()
        if optional and text == "":
            return None
        try:
            value: Any
            if kind is bool:
                value = {"true": True, "false": False}[text.lower()]
            elif isinstance(kind, type) and issubclass(kind, enum.Enum):
                value = next(
                    e for e in kind if str(e.value).lower() == text.lower() or e.name == text.upper()
                )
            else:
                value = kind(text)
        except (ValueError, KeyError, StopIteration):
            raise OptionError(self.key, text, self.expected, source) from None
        return self._check(value, source)

    def _check(self, value: Any, source: str) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        too_low = is_number and self.low is not None and value < self.low
        too_high = is_number and self.high is not None and value > self.high
        too_long = isinstance(value, str) and len(value) > TEXT_LENGTH_MAX
        if too_long:
            value = value[:KEY_SHOWN_MAX] + "..."
        malformed = self.form is not None and re.fullmatch(self.form.pattern, value) is None
        if too_low or too_high or too_long or malformed or value != value:  # the last condition is NaN
            raise OptionError(self.key, value, self.expected, source)
        return value

    @property
    def expected(self) -> str:
        if self.form is not None:
            return self.form.expected
        kind, _ = _unwrap(self.kind)
        if kind is bool:
            return "true or false"
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return "one of " + ", ".join(str(e.value) for e in kind)
        words = {
            int: "a whole number",
            float: "a number",
            str: f"text of at most {TEXT_LENGTH_MAX} characters",
        }[kind]
        if self.low is not None and self.high is not None:
            return f"{words} from {self.low} to {self.high}"
        if self.low is not None:
            return f"{words} of at least {self.low}"
        if self.high is not None:
            return f"{words} of at most {self.high}"
        return words

    def show(self, value: Any) -> str:
        if value is None:
            return ""
        if self.secret:
            return "********"
        if value is True or value is False:
            return str(value).lower()
        if isinstance(value, enum.Enum):
            return str(value.value)
        return str(value)


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """Options and the source of each value."""

    options: T
    sources: dict[str, str]
    unknown: dict[str, str]  # key → source

    def warn_unknown(self) -> None:
        for key, source in self.without_effect():
            log.warning(_WITHOUT_EFFECT, key, source)
        for key, source, near in self.slips():
            log.warning(
                "option_unknown key=%r source=%s next='check the spelling; it has no effect here.%s'",
                key,
                source,
                near,
            )

    def without_effect(self) -> list[tuple[str, str]]:
        """Return key and source of every setting that only RocketMQ has."""
        return [(key, source) for key, source in self.unknown.items() if is_rocketmqs(key)]

    def slips(self) -> list[tuple[str, str, str]]:
        """Return key, source and a suggestion for every key that neither kerolox nor RocketMQ has."""
        keys = [spec.key for spec in specs(type(self.options))]
        return [
            (key, source, meant(key, keys)) for key, source in self.unknown.items() if not is_rocketmqs(key)
        ]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return key, value and source of every option, for ``--print-config``."""
        chosen = self.options.chosen()
        return [
            (
                spec.key,
                spec.show(chosen.get(spec.name, getattr(self.options, spec.name))),
                self.sources.get(spec.name, "default"),
            )
            for spec in specs(type(self.options))
        ]


def specs(cls: type[Options]) -> tuple[Spec, ...]:
    """Return every option of a role, in the order of its class."""
    known = _SPECS.get(cls)
    if known is None:
        hints = typing.get_type_hints(cls)
        known = _SPECS[cls] = tuple(
            Spec(
                name=field.name,
                key=field.metadata["key"] or _camel(field.name),
                kind=hints[field.name],
                default=field.default,
                about=field.metadata["about"],
                low=field.metadata["low"],
                high=field.metadata["high"],
                changeable=field.metadata["changeable"],
                environment=field.metadata["environment"] or ENVIRONMENT_PREFIX + field.name.upper(),
                secret=field.metadata["secret"],
                form=field.metadata["form"],
            )
            for field in dataclasses.fields(cls)
        )
    return known


def load(
    cls: type[T],
    *,
    file_text: str | None = None,
    file_name: str = "",
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded[T]:
    """Merge the sources. ``flags`` are by attribute name; ``None`` means that the flag was not given."""
    by_key = {spec.key: spec for spec in specs(cls)}
    by_name = {spec.name: spec for spec in specs(cls)}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    unknown: dict[str, str] = {}
    if file_text is not None:
        for key, text in read_properties(file_text).items():
            refuse_absent(cls, key, text, file_name)
            spec = by_key.get(key)
            if spec is None:
                unknown[key] = file_name
                continue
            values[spec.name] = spec.parse(text, file_name)
            sources[spec.name] = file_name
    for spec in by_name.values():
        found = (environment or {}).get(spec.environment)
        if found is not None:
            values[spec.name] = spec.parse(found, f"environment {spec.environment}")
            sources[spec.name] = f"environment {spec.environment}"
    for name, value in (flags or {}).items():
        if value is None:
            continue
        values[name] = by_name[name].parse(value, "flag")
        sources[name] = "flag"
    return Loaded(cls(**values), sources, unknown)


def refuse_absent(cls: type[Options], key: str, text: str, source: str) -> None:
    """Raise NotThere if a setting requests a feature that this role lacks."""
    absent = cls.ABSENT.get(key)
    if absent is not None and absent.is_asked_for(text):
        raise NotThere(key, text.strip(), absent.why, source)


def change(options: Options, wanted: Mapping[str, str]) -> dict[str, Any]:
    """Change options of a running role, by key: all or none. Return the new values by attribute name.

    Raises OptionError for a wrong value and for an option that may not change at run time. Unknown keys are
    ignored with a warning, as in RocketMQ.
    """
    if len(wanted) > CHANGED_AT_ONCE_MAX:
        raise InvalidRequest(f"{len(wanted)} options at once, the limit is {CHANGED_AT_ONCE_MAX}")
    by_key = {spec.key: spec for spec in specs(type(options))}
    values: dict[str, Any] = {}
    for key, text in wanted.items():
        refuse_absent(type(options), key, text, "update")
        spec = by_key.get(key)
        if spec is None:
            if is_rocketmqs(key):
                log.warning(_WITHOUT_EFFECT, key, "update")
                continue
            log.warning(
                "option_unknown key=%r source=update next='it has no effect here'", key[:KEY_SHOWN_MAX]
            )
            continue
        value = spec.parse(text, "update")
        if value == getattr(options, spec.name):
            continue
        if not spec.changeable:
            raise OptionError(key, text, "no change at run time: set it in the file and restart", "update")
        values[spec.name] = value
    for name, value in values.items():
        setattr(options, name, value)
    return values


def to_properties(options: Options, found: Mapping[str, object] = MappingProxyType({})) -> str:
    """Return all options as ``key=value`` lines, as tools expect them, including absent features as off.

    ``found`` are values, by attribute name, of options that were left open.
    """
    absent = {key: absent.harmless[-1] for key, absent in type(options).ABSENT.items()}
    found = {**options.chosen(), **found}
    known = {
        spec.key: spec.show(found.get(spec.name, getattr(options, spec.name)))
        for spec in specs(type(options))
    }
    return write_properties(absent | known)


def sample(cls: type[Options]) -> str:
    """Return a commented sample file: ``##`` is prose, ``#`` a default."""
    lines = []
    for spec in specs(cls):
        lines += [
            f"## {spec.about}",
            f"## expected: {spec.expected}",
            f"#{spec.key}={spec.show(spec.default)}",
            "",
        ]
    return "\n".join(lines)


_SPECS: dict[type[Options], tuple[Spec, ...]] = {}


def _unwrap(kind: Any) -> tuple[Any, bool]:
    """Return the type without None and whether it was optional: ``int | None`` → ``(int, True)``."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        arms = [arm for arm in typing.get_args(kind) if arm is not type(None)]
        return arms[0], True
    return kind, False


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
