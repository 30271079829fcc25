"""Conversion of fsspec options to those of deltalake, which opens tables with its own drivers.

Both have different names for the same options, and both take missing ones from the environment or the role
of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from kerolox.pipeline.lake.remote_store import EXTRAS, RemoteStore
from kerolox.pipeline.lake.storage import Storage

_NAMES: Final = {
    "s3": {
        "key": "aws_access_key_id",
        "secret": "aws_secret_access_key",
        "token": "aws_session_token",
        "endpoint_url": "aws_endpoint_url",
        "client_kwargs.endpoint_url": "aws_endpoint_url",
        "client_kwargs.region_name": "aws_region",
        "anon": "aws_skip_signature",
    },
    "gcs": {"token": "google_service_account", "endpoint_url": "google_base_url"},
    "azure": {
        "account_name": "azure_storage_account_name",
        "account_key": "azure_storage_account_key",
        "sas_token": "azure_storage_sas_token",
        "tenant_id": "azure_tenant_id",
        "client_id": "azure_client_id",
        "client_secret": "azure_client_secret",
        "anon": "azure_skip_signature",
    },
}


def delta_options(storage: Storage) -> dict[str, str] | None:
    """Return deltalake's ``storage_options`` for a storage; None for a folder on disk."""
    if not isinstance(storage, RemoteStore):
        return None
    names = _NAMES.get(EXTRAS.get(storage.protocol, ""), {})
    given = _flat(storage.options)
    made = {names.get(name, name): _text(value) for name, value in given.items()}
    if EXTRAS.get(storage.protocol) == "s3":
        endpoint = made.get("aws_endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint.startswith("http://"):
            made["aws_allow_http"] = "true"
        if endpoint and not any(name in os.environ for name in ("AWS_REGION", "AWS_DEFAULT_REGION")):
            made.setdefault("aws_region", "us-east-1")  # deltalake requires a region; such servers ignore it
    return made


def _flat(options: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = value
    return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
