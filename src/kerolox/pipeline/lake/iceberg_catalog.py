"""Iceberg catalogs, given by an address or by a name in pyiceberg's own configuration.

The address determines the kind: ``sqlite:///FILE`` and ``postgresql://HOST/DB`` are SQL catalogs,
``http(s)://HOST`` is a REST catalog. Other catalogs of pyiceberg (Glue, Hive, ...) are given by a name from
``~/.pyiceberg.yaml`` or ``PYICEBERG_CATALOG__NAME__...`` in the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from kerolox.errors import KeroloxError, OptionError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

NAME = "kerolox"  # name of catalogs given by address; SQL catalogs store it with each table
SQL = ("sqlite", "postgresql")


class IcebergError(KeroloxError):
    """An operation on a catalog or a table failed."""

    def __init__(self, why: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(why)


@dataclass(frozen=True)
class CatalogPlace:
    """Address or name of a catalog, with its properties."""

    uri: str = ""
    name: str = ""  # in pyiceberg's configuration
    warehouse: str = ""  # location of new tables; REST catalogs have their own
    options: dict[str, str] = field(default_factory=dict)  # pyiceberg's: s3.endpoint, token, ...

    def __post_init__(self) -> None:
        if not self.uri:
            return
        scheme = self.uri.partition("://")[0].partition("+")[0]
        if scheme not in (*SQL, "http", "https"):
            raise OptionError(
                "catalog-uri", shown(self.uri),
                "sqlite:///FILE, postgresql://HOST/DB or http(s)://HOST[/PATH]; for others --catalog NAME, "
                "with a configuration in ~/.pyiceberg.yaml",
            )  # fmt: skip

    @property
    def text(self) -> str:
        """Text for messages, without passwords."""
        return shown(self.uri) or f"catalog {self.name or 'default'}"

    def properties(self) -> dict[str, str]:
        """Return the catalog properties for pyiceberg."""
        told: dict[str, str] = {}
        if self.uri:
            scheme = self.uri.partition("://")[0].partition("+")[0]
            told = {"type": "sql" if scheme in SQL else "rest", "uri": self.uri}
        if self.warehouse:
            warehouse = self.warehouse
            told["warehouse"] = warehouse if "://" in warehouse else _file_address(warehouse)
        return told | self.options

    def open(self) -> Catalog:
        """Open the catalog. Raises IcebergError if it cannot be reached."""
        if find_spec("pyiceberg") is None:
            raise IcebergError("pyiceberg is not installed. Install it: pip install 'kerolox[spark,iceberg]'")
        from pyiceberg.catalog import load_catalog

        name = self.name or (NAME if self.uri else None)
        if not self.uri and not self.options:
            self._check_configured()
        try:
            return load_catalog(name, **self.properties())
        except Exception as error:  # from SQLAlchemy, requests, pyiceberg, a driver, ...
            raise IcebergError(
                f"{self.text} cannot be opened: {short(error)}. Check its address and options", retriable=True
            ) from error

    def _check_configured(self) -> None:
        from pyiceberg.catalog import list_catalogs

        known = list_catalogs()
        if (self.name or "default") not in known:
            raise OptionError(
                "catalog", self.name or "default",
                f"a catalog of ~/.pyiceberg.yaml ({', '.join(known) or 'it has none'}), or --catalog-uri",
            )  # fmt: skip


def shown(uri: str) -> str:
    """Return an address without its password."""
    parts = urlsplit(uri)
    if parts.password is None:
        return uri
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}:***@{host}"))


def short(error: BaseException) -> str:
    """Return the error class and the first line of its text."""
    text = " ".join(str(error).split("\n", 1)[0].split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def split_name(text: str) -> tuple[str, ...]:
    """Split ``NAMESPACE.TABLE``; a namespace may have several parts."""
    parts = tuple(text.split("."))
    if len(parts) < 2 or not all(parts):
        raise OptionError("iceberg", text, "NAMESPACE.TABLE, such as lake.messages")
    return parts


def _file_address(path: str) -> str:
    from pathlib import Path

    return Path(path).absolute().as_uri()


def is_missing(error: BaseException) -> bool:
    """Return True if an error of pyiceberg means that the table or namespace does not exist."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    return isinstance(error, (NoSuchTableError, NoSuchNamespaceError))


def make_namespace(catalog: Any, parts: tuple[str, ...]) -> None:
    """Create a namespace unless it exists."""
    from pyiceberg.exceptions import NamespaceAlreadyExistsError

    try:
        catalog.create_namespace(parts)
    except NamespaceAlreadyExistsError:
        pass
