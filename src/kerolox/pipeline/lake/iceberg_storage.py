"""Storage of an Iceberg table's files, to which tasks write.

pyiceberg and fsspec have different names for the same options. Users give a key or an endpoint once, by
either name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kerolox.pipeline.lake.iceberg_table import IcebergTable
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.storage import Storage, open_storage

# pyiceberg's name: fsspec's name; a dot means inside a dictionary.
NAMES: Final = {
    "s3": {
        "s3.endpoint": "endpoint_url",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.session-token": "token",
        "s3.region": "client_kwargs.region_name",
    },
    "gs": {"gcs.project-id": "project", "gcs.oauth2.token": "token", "gcs.service.host": "endpoint_url"},
    "abfs": {
        "adls.account-name": "account_name",
        "adls.account-key": "account_key",
        "adls.sas-token": "sas_token",
        "adls.connection-string": "connection_string",
        "adls.tenant-id": "tenant_id",
        "adls.client-id": "client_id",
        "adls.client-secret": "client_secret",
    },
}
FAMILIES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs"}


def table_storage(table: IcebergTable, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage of a table's data. ``options`` of fsspec override those of the catalog."""
    return _storage_at(table.data_folder, table, options)


def metadata_storage(table: IcebergTable, options: Mapping[str, Any] | None = None) -> Storage | None:
    """Return the storage of a table's metadata; None if the folder may be shared with other tables."""
    address = table.metadata_folder
    return None if address is None else _storage_at(address, table, options)


def _storage_at(address: str, table: IcebergTable, options: Mapping[str, Any] | None) -> Storage:
    scheme = address.partition("://")[0] if "://" in address else "file"
    if scheme == "file":
        return LocalFolder(address.removeprefix("file://"))
    told = fsspec_options(FAMILIES.get(scheme, ""), table.storage_properties)
    return open_storage(address, {**told, **(options or {})})


def fsspec_options(family: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options of pyiceberg to those of fsspec."""
    found: dict[str, Any] = {}
    for theirs, name in NAMES.get(family, {}).items():
        if properties.get(theirs):
            outer, _, inner = name.partition(".")
            if inner:
                found.setdefault(outer, {})[inner] = properties[theirs]
            else:
                found[outer] = properties[theirs]
    return found


def catalog_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Convert options of fsspec to those of pyiceberg."""
    found: dict[str, str] = {}
    for names in NAMES.values():
        for theirs, name in names.items():
            outer, _, inner = name.partition(".")
            value = options.get(outer)
            if inner and isinstance(value, Mapping):
                value = value.get(inner)
            if isinstance(value, str):
                found[theirs] = value
    return found
