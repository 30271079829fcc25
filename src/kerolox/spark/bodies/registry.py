"""Client of schema registries with Confluent's protocol: Confluent, Apicurio, Karapace, Redpanda.

A body written with a registry begins with a zero byte and the number of its schema in four bytes; in
Protobuf the index path of the message follows. Executors request each number once and cache the answer. If
the registry does not answer, the task fails with a temporary error and Spark retries it. An unknown number
is an error of the body.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from kerolox.errors import KeroloxError, sentences
from kerolox.spark.bodies.format import SchemaText

log = logging.getLogger(__name__)

CACHE_MAX: Final = 1000  # schemas cached per process
REFERENCES_MAX: Final = 100  # of one schema
ANSWER_BYTES_MAX: Final = 16 << 20
TIMEOUT_S: Final = 10.0
TRIES: Final = 4
PAUSE_S: Final = 0.25  # before the second try; doubled before each further one
UNKNOWN_S: Final = 30.0  # time for which an unknown number is not requested again
CONTENT: Final = "application/vnd.schemaregistry.v1+json"
FORMATS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


class RegistryError(KeroloxError):
    """The registry rejected a request, or its answer is invalid."""


class RegistryUnreachable(RegistryError):
    """The registry does not answer, or reports an internal error."""

    retriable = True


class NotRegistered(RegistryError):
    """The registry does not have the schema or subject."""


@dataclass(frozen=True)
class RegistryAddress:
    """Address of a registry, with user and password."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True)
class Registered:
    """A schema of a registry."""

    id: int
    format: str  # avro, json or protobuf
    schema: SchemaText


class Registry:
    """Client of one registry, with a cache of schemas for this process."""

    def __init__(self, address: RegistryAddress) -> None:
        parts = urlsplit(address.url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.username:
            raise RegistryError(
                f"schemaRegistry {parts.scheme}://{parts.hostname or ''}...: expected http://host:port or "
                "https://host:port, with a path if it has one; user and password are options of their own"
            )
        self._address = address
        self._url = address.url.rstrip("/")
        self._by_id: OrderedDict[int, Registered] = OrderedDict()
        self._unknown: OrderedDict[int, float] = OrderedDict()  # since when

    def by_id(self, number: int) -> Registered:
        """Return a schema by its number. Raises NotRegistered, RegistryUnreachable and RegistryError."""
        found = self._by_id.get(number)
        if found is not None:
            self._by_id.move_to_end(number)
            return found
        since_s = self._unknown.get(number)
        if since_s is not None and time.monotonic() - since_s < UNKNOWN_S:
            raise NotRegistered(f"schema {number} is not in the registry at {self._url}")
        try:
            answer = self._ask("GET", f"/schemas/ids/{number}", what=f"schema {number}")
        except NotRegistered:
            _remember(self._unknown, number, time.monotonic())
            raise
        found = self._registered(number, answer)
        _remember(self._by_id, number, found)
        return found

    def latest(self, subject: str) -> Registered:
        """Return the newest version of a subject. Raises the same errors as by_id."""
        answer = self._ask(
            "GET", f"/subjects/{quote(subject, safe='')}/versions/latest", what=f"subject {subject}"
        )
        return self._registered(_number(answer, "id", self._url), answer)

    def look_up(self, subject: str, form: str, schema: SchemaText) -> int:
        """Return the number of a registered schema."""
        answer = self._ask(
            "POST", f"/subjects/{quote(subject, safe='')}", _content(form, schema),
            what=f"this schema under subject {subject}",
        )  # fmt: skip
        return _number(answer, "id", self._url)

    def register(self, subject: str, form: str, schema: SchemaText) -> int:
        """Register a schema if needed, and return its number."""
        answer = self._ask(
            "POST", f"/subjects/{quote(subject, safe='')}/versions", _content(form, schema),
            what=f"subject {subject}",
        )  # fmt: skip
        return _number(answer, "id", self._url)

    def _registered(self, number: int, answer: Any) -> Registered:
        kind = answer.get("schemaType") or "AVRO"
        form = next((ours for ours, theirs in FORMATS.items() if theirs == kind), None)
        text = answer.get("schema")
        if form is None or not isinstance(text, str):
            raise RegistryError(
                f"the registry at {self._url} has schema {number} as {kind!r}, which is unknown"
            )
        references: dict[str, str] = {}
        self._gather(answer.get("references") or (), references, ())
        return Registered(number, form, SchemaText(text, tuple(references.items())))

    def _gather(self, references: Any, found: dict[str, str], above: tuple[tuple[str, int], ...]) -> None:
        """Collect the referenced schemas, their own references first."""
        for each in references:
            name, subject, version = each["name"], each["subject"], each["version"]
            if name in found:
                continue
            if (subject, version) in above or len(found) >= REFERENCES_MAX:
                raise RegistryError(
                    f"the registry at {self._url}: {subject} version {version} refers to itself, "
                    "or to more than "
                    f"{REFERENCES_MAX} schemas"
                )
            answer = self._ask(
                "GET", f"/subjects/{quote(subject, safe='')}/versions/{int(version)}",
                what=f"{subject} version {version}",
            )  # fmt: skip
            self._gather(answer.get("references") or (), found, (*above, (subject, version)))
            found[name] = answer["schema"]

    # --- HTTP ------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, content: Any = None, *, what: str) -> Any:
        headers = {"Accept": f"{CONTENT}, application/json"}
        data = None
        if content is not None:
            data = json.dumps(content).encode()
            headers["Content-Type"] = CONTENT
        if self._address.user:
            pair = f"{self._address.user}:{self._address.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        trouble = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    return self._understood(answer.read(ANSWER_BYTES_MAX))
            except urllib.error.HTTPError as error:
                trouble = self._refused(error, what)
            except (OSError, http.client.HTTPException) as error:
                trouble = str(getattr(error, "reason", error)) or type(error).__name__
            log.info("registry_away url=%s try=%d error=%r", self._url, attempt + 1, trouble)
        raise RegistryUnreachable(
            sentences(
                f"the schema registry at {self._url} does not answer ({TRIES} tries, the last: {trouble})",
                "a retry may help; otherwise check schemaRegistry, and that executors can reach that address",
            )
        )

    def _refused(self, error: urllib.error.HTTPError, what: str) -> str:
        """Raise the error of a failed request, or return its text if a retry may help."""
        try:
            told = json.loads(error.read(ANSWER_BYTES_MAX))
            text = str(told.get("message", "")) if isinstance(told, dict) else ""
        except (ValueError, OSError):
            text = ""
        said = f"{error.code} {text or error.reason}"[:300]
        if error.code == 404:
            raise NotRegistered(f"{what} is not in the registry at {self._url} ({said})")
        if error.code in (401, 403):
            raise RegistryError(
                f"the schema registry at {self._url} denies access to {what} ({said}): check "
                "schemaRegistryUser "
                "and schemaRegistryPassword"
            )
        if error.code in (409, 422):
            raise RegistryError(f"the schema registry at {self._url} rejects {what}: {said}")
        if error.code < 500 and error.code != 429:
            raise RegistryError(f"the schema registry at {self._url} answers {said} when asked for {what}")
        return said

    def _understood(self, answer: bytes) -> Any:
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RegistryError(
                f"the server at {self._url} does not answer like a schema registry: {answer[:80]!r}. "
                "The path may be "
                "missing, such as /apis/ccompat/v7 for Apicurio"
            )
        return found


def _content(form: str, schema: SchemaText) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema.text}
    if form != "avro":  # the default, and unknown to old registries
        content["schemaType"] = FORMATS[form]
    return content


def _number(answer: Any, name: str, url: str) -> int:
    found = answer.get(name)
    if not isinstance(found, int):
        raise RegistryError(f"the schema registry at {url} answers without {name}: {str(answer)[:200]}")
    return found


def _remember(cache: OrderedDict[int, Any], key: int, value: Any) -> None:
    cache[key] = value
    while len(cache) > CACHE_MAX:
        cache.popitem(last=False)


_registries: dict[RegistryAddress, Registry] = {}


def registry_at(address: RegistryAddress) -> Registry:
    """Return the cached client of a registry: workers are reused for many tasks."""
    found = _registries.get(address)
    if found is None:
        while len(_registries) >= 16:
            _registries.pop(next(iter(_registries)))
        found = _registries[address] = Registry(address)
    return found
