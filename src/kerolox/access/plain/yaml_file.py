"""Reader and writer of RocketMQ 4's account files (``plain_acl.yml``).

::

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
      - accessKey: RocketMQ
        secretKey: "12345678"
        whiteRemoteAddress: 192.168.0.*
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [topicA=DENY, topicB=PUB|SUB]
        groupPerms: [groupA=DENY, groupB=SUB]
    dataVersion: [{counter: 3, timestamp: 1684290520350}]

Errors name the line and the reason but never show the invalid text: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kerolox.access.plain.accounts import (
    Account,
    check_key,
    check_secret,
    parse_perm,
    parse_perms,
    split_retry,
)
from kerolox.access.plain.addresses import Patterns, parse_addresses
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.topics import DataVersion

if TYPE_CHECKING:
    from yaml import Node

T = TypeVar("T")

FILE_BYTES_MAX = 16 << 20
ACCOUNTS_MAX = 10_000

_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+")


class AclFileBroken(KeroloxError):
    """An invalid account file, with the line of the error."""

    def __init__(self, path: str, line: int, why: object) -> None:
        where = f"{path}, line {line}" if line else path
        super().__init__(f"{where}: {why}")


class AclFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one account file."""

    path: str
    accounts: dict[str, Account] = {}
    white: Patterns = ()  # requests from these addresses need no account
    version: DataVersion = DataVersion()


def parse(data: bytes, path: str) -> AclFile:
    """Parse the content of a file. Raises AclFileBroken."""
    import yaml  # not at the top: few servers have such a file, and the import is slow

    try:
        root = yaml.compose(data.decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except UnicodeDecodeError as error:
        raise AclFileBroken(path, 0, f"it is not UTF-8: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        raise AclFileBroken(path, line, f"it is not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise AclFileBroken(path, 0, f"it is not YAML: {type(error).__name__}") from None
    return _Reader(path).file(root)


class _Reader:
    """Converter of the nodes of one file; nodes know their lines."""

    def __init__(self, path: str) -> None:
        self._path = path

    def file(self, root: Node | None) -> AclFile:
        if root is None or _is_null(root):
            return AclFile(path=self._path)  # an empty file has no accounts
        tree = self._mapping(root, "the file")
        accounts: dict[str, Account] = {}
        for node in self._sequence(tree.get("accounts"), "accounts"):
            account = self._account(node)
            if account.access_key in accounts:
                raise self._broken(node, f"the accessKey {account.access_key!r} occurs twice")
            accounts[account.access_key] = account
        if len(accounts) > ACCOUNTS_MAX:
            raise AclFileBroken(self._path, 0, f"{len(accounts)} accounts, the limit is {ACCOUNTS_MAX}")
        return AclFile(
            path=self._path,
            accounts=accounts,
            white=self._white(tree.get("globalWhiteRemoteAddresses")),
            version=self._version(tree.get("dataVersion")),
        )

    def _account(self, node: Node) -> Account:
        tree = self._mapping(node, "an account")
        for name in ("accessKey", "secretKey"):
            if name not in tree:
                raise self._broken(node, f"the account has no {name}")
        perms = {}
        for name in ("topicPerms", "groupPerms"):
            texts = [self._text(one) for one in self._sequence(tree.get(name), name)]
            perms[name] = self._take(tree.get(name, node), partial(parse_perms, texts))
        topics, groups = split_retry(perms["topicPerms"], perms["groupPerms"])
        white = tree.get("whiteRemoteAddress")
        return Account(
            access_key=self._take(tree["accessKey"], lambda: check_key(self._key(tree["accessKey"]))),
            secret_key=self._take(tree["secretKey"], lambda: check_secret(self._key(tree["secretKey"]))),
            white=() if white is None else self._take(white, lambda: parse_addresses(self._text(white))),
            admin=self._flag(tree.get("admin")),
            default_topic=parse_perm(self._text(tree.get("defaultTopicPerm"))),
            default_group=parse_perm(self._text(tree.get("defaultGroupPerm"))),
            topics=topics,
            groups=groups,
        )

    def _white(self, node: Node | None) -> Patterns:
        found: Patterns = ()
        for one in self._sequence(node, "globalWhiteRemoteAddresses"):
            found += self._take(one, partial(parse_addresses, self._text(one)))
        return found

    def _version(self, node: Node | None) -> DataVersion:
        """Return the version of the first entry; a missing or invalid one counts as the initial version."""
        entries = self._sequence(node, "dataVersion")
        if not entries:
            return DataVersion()
        tree = self._mapping(entries[0], "dataVersion")
        numbers = {}
        for name, key in (
            ("counter", "counter"),
            ("timestamp", "timestamp"),
            ("state_version", "stateVersion"),
        ):
            text = self._text(tree.get(key))
            numbers[name] = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0
        return DataVersion(**numbers)

    # --- nodes -----------------------------------------------------------------------------------------

    def _mapping(self, node: Node, what: str) -> dict[str, Node]:
        if not isinstance(node.value, list) or node.id != "mapping":  # type: ignore[attr-defined]
            raise self._broken(node, f"{what} must be a mapping (lines of key: value)")
        tree: dict[str, Node] = {}
        for key, value in node.value:
            name = self._text(key)
            if name in tree:
                raise self._broken(key, f"{name[:40]} occurs twice")
            tree[name] = value
        return tree

    def _sequence(self, node: Node | None, what: str) -> list[Node]:
        if node is None or _is_null(node):
            return []
        if node.id != "sequence":  # type: ignore[attr-defined]
            raise self._broken(node, f"{what} must be a list")
        return list(node.value)

    def _text(self, node: Node | None) -> str:
        """Return the text as written; "" if it is missing."""
        if node is None or _is_null(node):
            return ""
        if node.id != "scalar":  # type: ignore[attr-defined]
            raise self._broken(node, "expected a text")
        return str(node.value)

    def _key(self, node: Node) -> str:
        """Return a text in which every character matters. YAML readers would change a text that looks like a
        number, date or boolean (0123 becomes 83), so it must be quoted."""
        text = self._text(node)
        is_text = node.tag == _TAG + "str" or _is_null(node)
        if not node.style and _FLOAT.fullmatch(text):  # type: ignore[attr-defined]
            is_text = False  # for RocketMQ's reader, though not for PyYAML
        if not is_text and not (node.tag == _TAG + "int" and re.fullmatch(r"0|[1-9][0-9]*", text)):
            raise self._broken(node, "YAML reads this as a number, date or boolean: put it in quotes")
        return text

    def _flag(self, node: Node | None) -> bool:
        text = self._text(node).strip().lower()
        if text not in ("", "true", "false", "yes", "no", "on", "off"):
            raise self._broken(node, "admin must be true or false")
        return text in ("true", "yes", "on")

    def _take(self, node: Node, read: Callable[[], T]) -> T:
        try:
            return read()
        except ValueError as error:
            raise self._broken(node, error) from None

    def _broken(self, node: Node | None, why: object) -> AclFileBroken:
        return AclFileBroken(self._path, 0 if node is None else node.start_mark.line + 1, why)


def _is_null(node: Node) -> bool:
    return node.tag == _TAG + "null"


# --- changes ---------------------------------------------------------------------------------------------

Tree = dict[str, Any]


class _InQuotes(str):
    """A text that is written in quotes, so that every YAML reader returns it unchanged."""

    __slots__ = ()


def edited(data: bytes, path: str, edit: Callable[[Tree], None], now_ms: int) -> bytes:
    """Return the content of a file after a change, with the next version. The rest is kept except comments,
    as in RocketMQ. Raises AclFileBroken if the result would be invalid."""
    import yaml

    before = parse(data, path).version
    tree: Tree = yaml.safe_load(data.decode()) or {}
    edit(tree)
    tree["dataVersion"] = [{"counter": before.counter + 1, "timestamp": now_ms}]
    for account in accounts_of(tree):
        for name in ("accessKey", "secretKey"):
            if name in account:
                account[name] = _InQuotes(account[name])

    class Dumper(yaml.SafeDumper):
        """A dumper that can write quoted texts; registered on a subclass to leave the shared dumper
        unchanged."""

    Dumper.add_representer(
        _InQuotes, lambda dumper, text: dumper.represent_scalar(_TAG + "str", str(text), style='"')
    )
    text = yaml.dump(tree, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    parse(text.encode(), path)
    return text.encode()


def accounts_of(tree: Tree) -> list[Tree]:
    """Return the list of accounts in a tree; create it if it is missing."""
    if tree.get("accounts") is None:
        tree["accounts"] = []
    found: list[Tree] = tree["accounts"]
    return found


def find_account(tree: Tree, access_key: str) -> Tree | None:
    return next((one for one in accounts_of(tree) if str(one.get("accessKey")) == access_key), None)
