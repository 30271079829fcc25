"""Options of the Spark formats: declared once, read from Spark's strings, refused with what to write instead.

Spark hands options over as texts under lower-cased names, so ``nameServer`` and ``nameserver`` are one, and
``kerolox.nameServer`` is the same. A name that is not declared is an error: a misspelt option that has no
effect is found out in production.

Where Spark shows options it puts asterisks for those whose names match ``spark.redaction.regex``: the names
of secrets do. tests/spark/test_secured.py looks for secrets all over.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from kerolox.client.environment import (
    HIDDEN,
    SIGNATURE_V2,
    TLS,
    Keys,
    find_keys,
    find_switch,
    find_tls,
    read_secret,
)
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import OptionError

SECRETIVE: Final = ("secret", "password", "token", "key")  # a misspelt one is not shown either

PREFIX: Final = "kerolox."  # may stand before every name
OF_TABLES: Final = "option."  # what Spark puts before the options of CREATE TABLE
NO_TABLES: Final = "Spark does not hand the options of a table to its readers, as of 4.3"

# By what the query is.
NOT_HERE: Final = {
    "streaming": (
        "a batch query (spark.read) with it. Leave it out: a streaming query goes on until it is stopped, "
        "and with trigger(availableNow=True) it ends when it has read what there was at its start"
    ),
    "batch": "a streaming query (spark.readStream) with it. Leave it out: a batch query reads all at once",
}

OptionReader = Callable[[str], Any]  # raises ValueError

# What people write who come from elsewhere.
ELSEWHERE: Final = {
    "kafka.bootstrap.servers": "nameserver",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "assign": "queueIds",
    "kafka.group.id": "group",
    "groupidprefix": "group",
    "consumer.group": "group",
    "path": "topic",
    "includeheaders": "properties",
    "kafkaconsumer.polltimeoutms": "requestTimeoutMs",
    "fetchoffset.numretries": "retryForMs",
    "fetchoffset.retryintervalms": "retryForMs",
    "partition.metadata.cache.ttl.ms": "discoveryIntervalMs",
    "filter.tag": "tags",
    "filter.sql": "sql92",
}


@dataclass(frozen=True)
class Option:
    """One option: its name, how its text is read, and what it means."""

    key: str
    read: OptionReader
    expected: str
    about: str
    default: Any = None
    only: str = ""  # "batch" or "streaming": it means nothing in the other
    aliases: tuple[str, ...] = ()
    secret: bool = False


@dataclass(frozen=True)
class Values:
    """Options as they were given, and the defaults of the others."""

    given: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.given[key] if key in self.given else self.defaults[key]

    def has(self, key: str) -> bool:
        """Whether the option was given at all."""
        return key in self.given

    def at_most_one(self, *keys: str) -> str | None:
        """Which of these was given; more than one contradict each other."""
        found = [key for key in keys if key in self.given]
        if len(found) > 1:
            raise OptionError(found[1], self.given[found[1]], f"only one of {', '.join(found)}")
        return found[0] if found else None

    def exactly_one(self, *keys: str) -> str:
        found = self.at_most_one(*keys)
        if found is None:
            raise OptionError(keys[0], None, f"one of {', '.join(keys)}")
        return found

    def need(self, key: str, other: str) -> None:
        """``key`` makes no sense without ``other``."""
        if key in self.given and other not in self.given:
            raise OptionError(key, self.given[key], f"{other} to be given as well")


class OptionTable:
    """The options of one use of a format."""

    def __init__(self, what: str, *options: Option) -> None:
        self.what = what
        self.options = options
        self._by_name = {name.lower(): option for option in options for name in (option.key, *option.aliases)}
        self._defaults = {option.key: option.default for option in options}

    def parse(self, given: Mapping[str, str], mode: str = "", *, ignore: Iterable[str] = ()) -> Values:
        """The values by declared names. ``mode``: ``batch`` or ``streaming``, where it is known.

        ``ignore``: lower-cased names Spark itself adds.
        """
        ignored = set(ignore)
        values: dict[str, Any] = {}
        for name in given:
            if name.lower().startswith(OF_TABLES):
                raise OptionError(name, HIDDEN, "CREATE TEMPORARY VIEW ... USING instead: " + NO_TABLES)
        for name, text in given.items():
            if name.lower() in ignored:
                continue
            option = self._by_name.get(name.lower().removeprefix(PREFIX))
            if option is None:
                shown = HIDDEN if any(word in name.lower() for word in SECRETIVE) else text
                raise OptionError(name, shown, self._instead(name))
            if mode and option.only and option.only != mode:
                raise OptionError(option.key, text, NOT_HERE[mode])
            if option.key in values:
                names = ", ".join((option.key, *option.aliases))
                shown = HIDDEN if option.secret else text
                raise OptionError(option.key, shown, f"one of its names ({names}), not several")
            try:
                values[option.key] = option.read(text.strip())
            except ValueError as error:
                why = f" ({error})" if str(error) and not option.secret else ""
                raise OptionError(
                    option.key, HIDDEN if option.secret else text, option.expected + why
                ) from None
        return Values(values, self._defaults)

    def completed(self, given: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
        """What was given, and of the others what was not given under any of its names."""
        known = {self.key_of(name) for name in given}
        return {**given, **{name: value for name, value in others.items() if self.key_of(name) not in known}}

    def key_of(self, name: str) -> str:
        """The declared name of an option; of an unknown one the name itself."""
        option = self._by_name.get(name.lower().removeprefix(PREFIX))
        return name if option is None else option.key

    def is_secret(self, name: str) -> bool:
        option = self._by_name.get(name.lower().removeprefix(PREFIX))
        return option is not None and option.secret

    def _instead(self, name: str) -> str:
        hint = ELSEWHERE.get(name.lower())
        if hint is not None and hint.lower() in self._by_name:
            return f"{hint}, which is its name in {self.what}"
        near = difflib.get_close_matches(name.lower(), self._by_name, 1, 0.7)
        known = ", ".join(option.key for option in self.options)
        nearest = f"{self._by_name[near[0]].key}, perhaps; " if near else ""
        return f"{nearest}the options of {self.what} are {known}"

    def describe(self) -> list[tuple[str, str, str, str]]:
        """Name, expected value, default and meaning of every option, for the documentation."""
        return [
            (each.key, each.expected, "" if each.default is None else _shown(each.default), each.about)
            for each in self.options
        ]


# --- texts to values -----------------------------------------------------------------------------------


def text(value: str) -> str:
    if not value:
        raise ValueError("empty")
    return value


def flag(value: str) -> bool:
    match value.lower():
        case "true" | "yes" | "1":
            return True
        case "false" | "no" | "0":
            return False
    raise ValueError


def _whole(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError("no whole number") from None


def number(low: int, high: int | None = None) -> OptionReader:
    def read(value: str) -> int:
        found = _whole(value)
        if found < low or (high is not None and found > high):
            raise ValueError("out of range")
        return found

    return read


SIZES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size(value: str) -> int:
    """Bytes, with k, m or g behind the number if wanted: ``64m``."""
    lower = value.lower().removesuffix("b")
    times = SIZES.get(lower[-1:], 0)
    found = _whole(lower[:-1] if times else lower) * (times or 1)
    if found < 1:
        raise ValueError("out of range")
    return found


UNITS_MS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
SPAN: Final = "milliseconds, or with a unit: 500ms, 30s, 15m, 2h, 1d"


def _span(value: str) -> int | None:
    """The milliseconds of a number with a unit; None where it is not one."""
    found = _SPAN.fullmatch(value)
    unit = UNITS_MS.get(found[2].lower()) if found else None
    return None if found is None or unit is None else round(float(found[1]) * unit)


def span(low: int, high: int | None = None) -> OptionReader:
    """A length of time in milliseconds: ``900000``, ``15m``, ``15 minutes``."""

    def read(value: str) -> int:
        found = _span(value)
        if found is None:
            found = _whole(value)
        if found < low or (high is not None and found > high):
            raise ValueError("out of range")
        return found

    return read


def words(value: str) -> tuple[str, ...]:
    """A list with commas."""
    found = tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))
    if not found:
        raise ValueError("empty")
    return found


def numbers(value: str) -> tuple[int, ...]:
    return tuple(_whole(word) for word in words(value))


def one_of(*choices: str) -> OptionReader:
    def read(value: str) -> str:
        if value.lower() not in choices:
            raise ValueError
        return value.lower()

    return read


MOMENT: Final = "milliseconds since 1970, a time like 2026-01-31T12:00:00+01:00, or 15m (ago)"


def moment(value: str) -> int:
    """Milliseconds since 1970, or a date in ISO form (without a zone in UTC), or how long ago."""
    if value.lstrip("-").isdigit():
        return int(value)
    ago = _span(value.lower().removesuffix("ago").rstrip())
    if ago is not None:
        return SYSTEM_CLOCK.wall_ms() - ago
    found = datetime.fromisoformat(value)
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# --- the cluster ---------------------------------------------------------------------------------------

YES_NO: Final = "true or false"

# Of every format that talks to brokers.
CLUSTER: Final = (
    Option(
        "nameserver", text, "host:port;host:port", "name servers of the cluster",
        default="", aliases=("nameservers", "namesrvAddr"),
    ),
    Option("accessKey", text, "a name", "who signs the requests", default=""),
    Option("secretKey", text, "a text", "what they are signed with", default="", secret=True),
    Option("securityToken", text, "a text", "of temporary keys", default="", secret=True),
    Option("secretKeyFile", text, "a file of the driver", "has the secret key on its only line", default=""),
    Option("keysFile", text, "a file of the driver", "lines accessKey: NAME, secretKey: TEXT", default=""),
    Option("namespace", text, "a name", "put before topics and groups", default=""),
    Option("tls", flag, YES_NO, "speak TLS to name servers and brokers", default=False),
    Option("tlsCa", text, "a PEM file", "the trusted authorities, and no others; the system's when absent"),
    Option("tlsCertificate", text, "a PEM file", "this client's certificate"),
    Option("tlsKey", text, "a PEM file", "its key"),
    Option("tlsKeyPassword", text, "a text", "of the key", secret=True),
    Option("tlsKeyPasswordFile", text, "a file of the driver", "that has it on its only line"),
    Option("tlsVerify", flag, YES_NO, "refuse certificates of unknown authorities", default=True),
    Option("tlsCheckHost", flag, YES_NO, "the certificate must name the address; unset: without `tlsCa`"),
    Option("connectTimeoutMs", span(1), SPAN, "for a connection to open", default=3_000),
    Option(
        "requestTimeoutMs", span(1), SPAN, "for an answer to come",
        default=10_000, aliases=("pullTimeoutMs",),
    ),
    Option(
        "retryForMs", span(0), SPAN,
        "how long brokers and name servers that do not answer are asked again", default=60_000,
    ),
)  # fmt: skip


# The options of TLS, by the fields they are.
_TLS_FIELDS: Final = {
    "tlsCa": "ca",
    "tlsCertificate": "certificate",
    "tlsKey": "key",
    "tlsKeyPassword": "key_password",
    "tlsVerify": "verify",
    "tlsCheckHost": "check_host",
}


def cluster_options(values: Values) -> ClientOptions:
    """How to reach the cluster that was asked for. What was not said about keys and TLS, the environment of
    the driver says; it travels to the executors, but for the files of TLS, which have to be there."""
    keys = _keys(values)
    given = {field: values[key] for key, field in _TLS_FIELDS.items() if values.has(key)}
    if values.has("tlsKeyPasswordFile"):
        given["key_password"] = read_secret("tlsKeyPasswordFile", values["tlsKeyPasswordFile"])
    if given and not values.has("tls") and not os.environ.get(TLS):
        key = next(key for key in (*_TLS_FIELDS, "tlsKeyPasswordFile") if values.has(key))
        raise OptionError(key, HIDDEN, "tls = true to be given as well")
    options = ClientOptions(
        nameservers=values["nameserver"],
        namespace=values["namespace"],
        access_key=keys.access_key,
        secret_key=keys.secret_key,
        security_token=keys.security_token,
        signature_v2=find_switch(SIGNATURE_V2, environment=os.environ),
        tls=find_tls(given, on=values.given.get("tls"), environment=os.environ),
        connect_timeout_s=values["connectTimeoutMs"] / 1000,
        request_timeout_s=values["requestTimeoutMs"] / 1000,
        environment=False,
    )
    options.addresses()  # complains when there are none
    return options


def _keys(values: Values) -> Keys:
    given = Keys(values["accessKey"], values["secretKey"], values["securityToken"])
    try:
        return find_keys(
            given,
            secret_key_file=values["secretKeyFile"],
            keys_file=values["keysFile"],
            environment=os.environ,
        )
    except OptionError as error:
        raise OptionError(_spelled(error.key), error.value, _spelled(error.expected)) from None


def _spelled(text: str) -> str:
    """The names of a client's options as they are written here."""
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda name: _camel(name[0]), text)


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(word.title() for word in more)


def open_cluster(values: Values) -> SocketCluster:
    """The cluster that was asked for, with as much patience as was asked for."""
    return SocketCluster(cluster_options(values), patience_s=values["retryForMs"] / 1000)
