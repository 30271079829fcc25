"""Brokers with access control, for tests.

::

    async with running_broker(**secured()) as running:
        Producer(running.nameserver_address, group="g", access_key="admin", secret_key="admin's secret")
"""

from __future__ import annotations

from typing import Any

import msgspec

from kerolox.net.signing import Credentials

ADMIN = Credentials("admin", "admin's secret")  # has all rights
INNER = Credentials("inner", "the servers' secret")


def secured(**options: Any) -> dict[str, Any]:
    """Return the options of a broker that requires authentication and enforces access policies. Its first
    user is ``ADMIN``. Name servers accept all clients unless they get these options too, with an
    ``access_path``."""
    return {
        "authentication": True,
        "authorization": True,
        "first_user": msgspec.json.encode(
            {"username": ADMIN.access_key, "password": ADMIN.secret_key}
        ).decode(),
        "inner_credentials": msgspec.json.encode(
            {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
        ).decode(),
        **options,
    }
