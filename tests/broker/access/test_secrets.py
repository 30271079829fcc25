"""Secrets in settings: no request shows them, and no request changes what they protect."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.testing.access import ADMIN, INNER, secured
from kerolox.testing.broker import running_broker


async def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    async with (
        running_broker(directory=tmp_path, **secured()) as running,
        Dialer(credentials=ADMIN) as dialer,
    ):
        shown = await dialer.call(running.address, RequestCode.GET_BROKER_CONFIG)
        text = shown.body.decode()
        assert "authenticationEnabled=true" in text
        assert "initAuthenticationUser=********" in text
        assert ADMIN.secret_key not in text
        assert INNER.secret_key not in text


def in_files(folder: Path, text: bytes) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pem"]
    return any(text in path.read_bytes() for path in files)


@pytest.mark.parametrize(
    "line",
    [
        "authenticationEnabled=false",
        "authorizationEnabled=false",
        'initAuthenticationUser={"username": "eve", "password": "e"}',
        "accessPath=/tmp/eve.json",
        "adminFrom=*",
        "authorizationWhitelist=25",
    ],
)
async def test_access_is_not_switched_off_by_a_request(tmp_path: Path, line: str) -> None:
    """RocketMQ takes such a line into its file: after the next start it counts."""
    async with (
        running_broker(directory=tmp_path, **secured()) as running,
        Dialer(credentials=ADMIN) as dialer,
    ):
        before = running.broker.options.__dict__.copy()
        refused = await dialer.call(running.address, RequestCode.UPDATE_BROKER_CONFIG, body=line.encode())
        assert refused.code != 0
        assert running.broker.options.__dict__ == before
        assert not in_files(tmp_path, b"eve")
