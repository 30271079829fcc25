"""Keys and TLS settings of a client from the environment and from files, where its options set none.

Secrets do not belong in code, on a command line or in the options of a Spark query. So every client reads
missing values from these variables; given options override them, value by value. Servers use other variables,
so one environment may configure both.

A file of keys has the form of RocketMQ's ``tools.yml``: lines of ``accessKey: NAME`` and ``secretKey: TEXT``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from kerolox.errors import OptionError
from kerolox.net.tls import ClientTls

log = logging.getLogger(__name__)

ACCESS_KEY: Final = "KEROLOX_ACCESS_KEY"
SECRET_KEY: Final = "KEROLOX_SECRET_KEY"
SECURITY_TOKEN: Final = "KEROLOX_SECURITY_TOKEN"
SECRET_KEY_FILE: Final = "KEROLOX_SECRET_KEY_FILE"
KEYS_FILE: Final = "KEROLOX_KEYS_FILE"
SIGNATURE_V2: Final = "KEROLOX_SIGNATURE_V2"
TLS: Final = "KEROLOX_CLIENT_TLS"
TLS_DETAILS: Final = {  # by the fields of ClientTls
    "ca": "KEROLOX_CLIENT_TLS_CA",
    "certificate": "KEROLOX_CLIENT_TLS_CERTIFICATE",
    "key": "KEROLOX_CLIENT_TLS_KEY",
    "key_password": "KEROLOX_CLIENT_TLS_KEY_PASSWORD",
    "verify": "KEROLOX_CLIENT_TLS_VERIFY",
    "check_host": "KEROLOX_CLIENT_TLS_CHECK_HOST",
}
TLS_KEY_PASSWORD_FILE: Final = "KEROLOX_CLIENT_TLS_KEY_PASSWORD_FILE"

KEYS: Final = (ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN, SECRET_KEY_FILE, KEYS_FILE)
VARIABLES: Final = (*KEYS, SIGNATURE_V2, TLS, *TLS_DETAILS.values(), TLS_KEY_PASSWORD_FILE)

HIDDEN: Final = "********"
FILE_BYTES_MAX: Final = 64 << 10

_LINE: Final = re.compile(r"(accessKey|secretKey|securityToken)[ \t]*:(?:[ \t]+(.*))?")
_warned: set[str] = set()  # files that others may read


class Keys(msgspec.Struct, frozen=True):
    """Keys that sign requests; empty: requests are not signed."""

    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""  # of temporary keys

    def __repr__(self) -> str:  # never the secret
        return f"Keys({self.access_key!r})"


def find_keys(
    given: Keys,
    *,
    secret_key_file: str = "",
    keys_file: str = "",
    environment: Mapping[str, str],
) -> Keys:
    """Return the keys of a client: those ``given``, completed from files and the environment.

    The first source with an access key determines the user. The secret is taken from there, or from the next
    source that does not belong to another access key.
    """
    if given.access_key and given.secret_key:
        return given
    secret = given.secret_key or (read_secret("secret_key_file", secret_key_file) if secret_key_file else "")
    own = Keys(given.access_key, secret, given.security_token)
    places = [own, *_places(keys_file, environment)]
    name = next((place.access_key for place in places if place.access_key), "")
    if not name:
        if own.secret_key:
            raise OptionError("access_key", "", "access_key and secret_key, or neither")
        return Keys()
    for place in places:
        if place.secret_key and place.access_key in ("", name):
            return Keys(name, place.secret_key, own.security_token or place.security_token)
    raise OptionError(
        "access_key",
        name,
        f"its secret key: the option secret_key or secret_key_file, or {SECRET_KEY}, {SECRET_KEY_FILE} or "
        f"{KEYS_FILE} in the environment",
    )


def _places(keys_file: str, environment: Mapping[str, str]) -> Iterator[Keys]:
    if keys_file:
        yield read_keys("keys_file", keys_file)
    secret_file = environment.get(SECRET_KEY_FILE, "")
    yield Keys(
        environment.get(ACCESS_KEY, ""),
        environment.get(SECRET_KEY, "") or (read_secret(SECRET_KEY_FILE, secret_file) if secret_file else ""),
        environment.get(SECURITY_TOKEN, ""),
    )
    if environment.get(KEYS_FILE):
        yield read_keys(KEYS_FILE, environment[KEYS_FILE])


def find_tls(
    given: Mapping[str, Any], *, on: bool | None = None, environment: Mapping[str, str]
) -> ClientTls | None:
    """Return the TLS settings of a client; None without TLS.

    ``given``: fields of ClientTls set by options; ``on``: the option that enables TLS, or None. Missing
    values are read from the environment.
    """
    found: dict[str, Any] = {}
    for field, variable in TLS_DETAILS.items():
        text = environment.get(variable, "").strip()
        if text:
            found[field] = _switch(variable, text) if field in ("verify", "check_host") else text
    password_file = environment.get(TLS_KEY_PASSWORD_FILE)
    if password_file and "key_password" not in found:
        found["key_password"] = read_secret(TLS_KEY_PASSWORD_FILE, password_file)
    details = {**found, **given}
    if on is None and environment.get(TLS, "").strip():
        on = _switch(TLS, environment[TLS])
    if on is None and details:
        # TLS details without TLS are an error: a user who names an authority expects encryption.
        name = TLS_DETAILS[next(iter(found))] if found else next(iter(given))
        raise OptionError(name, HIDDEN, f"TLS to be on or off as well: the option tls, or {TLS}=on")
    return ClientTls(**details) if on else None


def find_switch(variable: str, *, environment: Mapping[str, str]) -> bool:
    """Return True if a variable is on. Default: off."""
    text = environment.get(variable, "")
    return bool(text.strip()) and _switch(variable, text)


def _switch(name: str, text: str) -> bool:
    match text.strip().lower():
        case "on" | "true" | "yes" | "1":
            return True
        case "off" | "false" | "no" | "0":
            return False
    raise OptionError(name, text, "on or off")


# --- files -------------------------------------------------------------------------------------------


def read_secret(option: str, path: str) -> str:
    """Read a file that contains only a secret. The line end is removed."""
    secret = _read(option, path).rstrip("\r\n")
    if not secret or "\n" in secret:
        raise OptionError(option, path, "a file with one line, the secret")
    return secret


def read_keys(option: str, path: str) -> Keys:
    """Read a key file in the form of RocketMQ's ``tools.yml``. Other lines are ignored."""
    found: dict[str, str] = {}
    for line in _read(option, path).splitlines():
        matched = _LINE.fullmatch(line.rstrip())
        if matched:
            found[matched[1]] = _scalar(matched[2] or "")
    return Keys(found.get("accessKey", ""), found.get("secretKey", ""), found.get("securityToken", ""))


def _scalar(text: str) -> str:
    """Parse a one-line YAML scalar: bare, or in single or double quotes."""
    text = text.strip()
    if text.startswith("'"):
        return text[1 : text.rindex("'")].replace("''", "'") if text.count("'") > 1 else ""
    if text.startswith('"'):
        try:
            return str(json.loads(text[: text.rindex('"') + 1]))
        except ValueError:
            return ""
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].rstrip()


def _read(option: str, path: str) -> str:
    path = os.path.expanduser(path)
    try:
        with open(path, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            text = file.read(FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise OptionError(option, path, f"a file that can be read ({reason})") from None
    if os.name == "posix" and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and path not in _warned:
        _warned.add(path)
        log.warning("secret_readable_by_others file=%s next='chmod 600 %s'", path, path)
    return text
