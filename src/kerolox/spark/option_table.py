"""Options of the Spark formats: declarations, parsing of Spark's strings, and errors with a suggestion.

Spark passes options as text under lower-case names, so ``nameServer`` and ``nameserver`` are equal, and
``kerolox.nameServer`` is an alias. An undeclared name is an error: a misspelled option without effect would
only be noticed in production.

Spark shows asterisks for options whose names match ``spark.redaction.regex``, as the names of secrets do.
tests/spark/test_secured.py searches for leaked secrets.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
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
from kerolox.times import span_s, time_ms

SECRETIVE: Final = ("secret", "password", "token", "key")  # values of misspelled secrets are hidden too

PREFIX: Final = "kerolox."  # optional prefix of every name
OF_TABLES: Final = "option."  # prefix of options of CREATE TABLE in Spark
NO_TABLES: Final = "Spark does not pass the options of a table to its readers, as of 4.3"

# Error texts by kind of query.
NOT_HERE: Final = {
    "streaming": (
        "a batch query (spark.read) with it. Remove it: a streaming query runs until it is stopped, or, "
        "with trigger(availableNow=True), until it has read the messages stored at its start"
    ),
    "batch": "a streaming query (spark.readStream) with it. Remove it: a batch query reads all at once",
}

OptionReader = Callable[[str], Any]  # raises ValueError

# Equivalent options by their names in other connectors.
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
    """One option: name, parser, expected value and help text."""

    key: str
    read: OptionReader
    expected: str
    about: str
    default: Any = None
    only: str = ""  # "batch" or "streaming": the kind of query that has this option
    aliases: tuple[str, ...] = ()
    secret: bool = False


@dataclass(frozen=True)
class Values:
    """Given options, and the defaults of the others."""

    given: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.given[key] if key in self.given else self.defaults[key]

    def has(self, key: str) -> bool:
        """Return True if the option was given."""
        return key in self.given

    def at_most_one(self, *keys: str) -> str | None:
        """Return the one of these options that was given. Raises OptionError for more than one."""
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
        """Raise OptionError if ``key`` was given without ``other``."""
        if key in self.given and other not in self.given:
            raise OptionError(key, self.given[key], f"{other} to be given as well")


class OptionTable:
    """Options of a source or sink."""

    def __init__(self, what: str, *options: Option) -> None:
        self.what = what
        self.options = options
        self._by_name = {name.lower(): option for option in options for name in (option.key, *option.aliases)}
        self._defaults = {option.key: option.default for option in options}

    def parse(self, given: Mapping[str, str], mode: str = "", *, ignore: Iterable[str] = ()) -> Values:
        """Parse options. ``mode``: ``batch`` or ``streaming``, if known.

        ``ignore``: lower-case names that Spark adds.
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
        """Return the given options, completed by those of the others that were not given under any name."""
        known = {self.key_of(name) for name in given}
        return {**given, **{name: value for name, value in others.items() if self.key_of(name) not in known}}

    def key_of(self, name: str) -> str:
        """Return the declared name of an option; the name itself if it is unknown."""
        option = self._by_name.get(name.lower().removeprefix(PREFIX))
        return name if option is None else option.key

    def is_secret(self, name: str) -> bool:
        option = self._by_name.get(name.lower().removeprefix(PREFIX))
        return option is not None and option.secret

    def _instead(self, name: str) -> str:
        hint = ELSEWHERE.get(name.lower())
        if hint is not None and hint.lower() in self._by_name:
            return f"{hint}, the name of this option in {self.what}"
        near = difflib.get_close_matches(name.lower(), self._by_name, 1, 0.7)
        known = ", ".join(option.key for option in self.options)
        nearest = f"{self._by_name[near[0]].key}, perhaps; " if near else ""
        return f"{nearest}the options of {self.what} are {known}"

    def describe(self) -> list[tuple[str, str, str, str]]:
        """Return name, expected value, default and help of every option, for the documentation."""
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


SPAN: Final = "milliseconds, or with a unit: 500ms, 30s, 15m, 2h, 1d"


def span(low: int, high: int | None = None) -> OptionReader:
    """Return a parser of durations in milliseconds: ``900000``, ``15m``, ``15 minutes``."""

    def read(value: str) -> int:
        seconds = span_s(value)
        found = _whole(value) if seconds is None else round(seconds * 1000)
        if found < low or (high is not None and found > high):
            raise ValueError("out of range")
        return found

    return read


def words(value: str) -> tuple[str, ...]:
    """Parse a list separated by commas."""
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
    """Parse milliseconds since 1970, an ISO date (UTC without a zone), or a duration before now."""
    return time_ms(value, SYSTEM_CLOCK.wall_ms(), UTC)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# --- the cluster ---------------------------------------------------------------------------------------

YES_NO: Final = "true or false"

# Options of all formats that connect to brokers.
CLUSTER: Final = (
    Option(
        "nameserver", text, "host:port;host:port", "name servers of the cluster",
        default="", aliases=("nameservers", "namesrvAddr"),
    ),
    Option("accessKey", text, "a name", "access key that signs requests", default=""),
    Option("secretKey", text, "a text", "secret key of the access key", default="", secret=True),
    Option("securityToken", text, "a text", "token of temporary keys", default="", secret=True),
    Option("secretKeyFile", text, "a file on the driver", "file with only the secret key", default=""),
    Option("keysFile", text, "a file on the driver", "file: accessKey: NAME, secretKey: TEXT", default=""),
    Option("namespace", text, "a name", "prefix of topics and groups", default=""),
    Option("tls", flag, YES_NO, "use TLS for name servers and brokers", default=False),
    Option("tlsCa", text, "a PEM file", "trusted authorities. Default: those of the system"),
    Option("tlsCertificate", text, "a PEM file", "certificate of the client"),
    Option("tlsKey", text, "a PEM file", "key of the client's certificate"),
    Option("tlsKeyPassword", text, "a text", "password of the key", secret=True),
    Option("tlsKeyPasswordFile", text, "a file on the driver", "file with only that password"),
    Option("tlsVerify", flag, YES_NO, "reject certificates of unknown authorities", default=True),
    Option("tlsCheckHost", flag, YES_NO, "check the address in the certificate. Default: without `tlsCa`"),
    Option("connectTimeoutMs", span(1), SPAN, "timeout of a connection attempt", default=3_000),
    Option(
        "requestTimeoutMs", span(1), SPAN, "timeout of a request",
        default=10_000, aliases=("pullTimeoutMs",),
    ),
    Option(
        "retryForMs", span(0), SPAN,
        "duration of retries when brokers or name servers do not answer", default=60_000,
    ),
)  # fmt: skip


# Fields of the TLS settings, by option.
_TLS_FIELDS: Final = {
    "tlsCa": "ca",
    "tlsCertificate": "certificate",
    "tlsKey": "key",
    "tlsKeyPassword": "key_password",
    "tlsVerify": "verify",
    "tlsCheckHost": "check_host",
}


def cluster_options(values: Values) -> ClientOptions:
    """Return the client options of the cluster.

    Missing keys and TLS settings are taken from the environment of the driver. The options are sent to the
    executors, except for TLS files, which must exist there.
    """
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
    options.addresses()  # raises an error if there are none
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
    """Replace names of client options by those of Spark options."""
    return re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda name: _camel(name[0]), text)


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(word.title() for word in more)


def open_cluster(values: Values) -> SocketCluster:
    """Return a client of the cluster, with the requested duration of retries."""
    return SocketCluster(cluster_options(values), patience_s=values["retryForMs"] / 1000)
