"""``kerolox cluster up --access``: servers that know each other, and clients that are known."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.access.book_file import decode_book
from kerolox.access.folder import AccessFolder
from kerolox.cli.main import app
from kerolox.protocol.command import Command
from kerolox.protocol.signature_v2 import SIGNATURE_V2
from kerolox.supervise.folder import ClusterFolder
from kerolox.supervise.layouts import layout
from tests.cli.test_cluster_up import UpProcess, run, servers, start, until

__all__ = ["start"]


def asked(*words: str, **variables: str) -> Any:
    done = CliRunner().invoke(app, words, env=variables)
    return done.stdout if done.exit_code == 0 else done.stderr


def test_a_secured_cluster_under_a_controller(start: Callable[..., UpProcess], tmp_path: Path) -> None:
    running = start("--like", "controller-3", "--nameserver-listen", "127.0.0.1:0", "--access")
    data = tmp_path / "cluster"
    client = running.up["client"]
    assert client == {
        "NAMESRV_ADDR": running.nameserver,
        "KEROLOX_KEYS_FILE": str(data / "tools.yml"),
    }
    secrets = [user.password for user in decode_book((data / "access.json").read_bytes()).users.values()]
    assert not any(secret in json.dumps(running.up) for secret in secrets)
    for one in servers(data).values():
        assert stat.S_IMODE(Path(one["config"]).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(one["log"]).stat().st_mode) == 0o600
        if one["role"] in ("controller", "replica"):
            assert stat.S_IMODE(Path(one["data"]).stat().st_mode) == 0o700

    assert "SEND_OK" in asked("send", "T", "hello", **client)
    tailed = asked("tail", "T", "--from", "0", "--count", "1", "--json", **client)
    assert json.loads(tailed)["body"] == "hello"
    controller = next(one["address"] for one in servers(data).values() if one["role"] == "controller")
    shown = asked("controller", "status", "-a", controller, "--json", **client)
    assert len(json.loads(shown)["brokers"]["broker-a"]["replicas"]) == 3

    nobody = {"NAMESRV_ADDR": running.nameserver}
    for words in (("send", "T", "x"), ("cluster", "list"), ("controller", "status", "-a", controller)):
        assert "access denied" in asked(*words, **nobody)

    asked("access", "user", "create", "alice", "--generate", "--show-secret", **client)

    def at() -> list[str]:
        (alice,) = json.loads(asked("access", "user", "list", "alice", "--json", **client))
        return list(alice["at"])

    until(lambda: len(at()) == 3)


def test_a_cluster_beyond_this_machine_must_say_who_comes_in(tmp_path: Path) -> None:
    where = ("cluster", "up", "--like", "2m-noslave", "--data", str(tmp_path / "c"))
    code, said = run(*where, "--nameserver-listen", "0.0.0.0:0")
    assert code == 1
    assert "--access" in said
    assert "--open" in said
    assert not (tmp_path / "c").exists()


def test_a_cluster_that_is_secured_stays_so(tmp_path: Path) -> None:
    folder, users = ClusterFolder(tmp_path), AccessFolder(tmp_path)
    planned = layout("2m-2s-sync")
    folder.prepare("2m-2s-sync", planned, "127.0.0.1:0", {})
    assert not folder.is_secured
    settings = users.secured_settings(["10.0.0.1"], {})
    assert settings["tls.server.mode"] == "enforcing"
    folder.prepare("2m-2s-sync", planned, "127.0.0.1:0", {}, access=settings)
    assert folder.is_secured
    for one in planned:
        assert folder.settings(one.name).items() >= settings.items()
        assert stat.S_IMODE(folder.config(one.name).stat().st_mode) == 0o600
    assert users.secured_settings(["10.0.0.1"], {}) == settings  # the same servers' user again
    code, said = run("cluster", "up", "--like", "2m-2s-sync", "--data", str(tmp_path), "--open")
    assert code == 1
    assert "authenticationEnabled=true" in said


@pytest.mark.parametrize(("use", "form_2"), [("off", False), ("inner", True)])
async def test_its_commands_sign_as_its_servers_do(tmp_path: Path, use: str, form_2: bool) -> None:
    folder = ClusterFolder(tmp_path)
    settings = AccessFolder(tmp_path).secured_settings(["127.0.0.1"], {}) | {"signatureV2": use}
    folder.prepare("2m-2s-sync", layout("2m-2s-sync"), "127.0.0.1:0", {}, access=settings)
    async with folder.dialer() as dialer:
        asked = Command(1, opaque=1, fields={}, body=b"")
        for hook in dialer.handlers.hooks:
            hook.before_request(None, asked)  # type: ignore[arg-type]
    assert (SIGNATURE_V2 in asked.fields) is form_2


def test_what_was_chosen_for_tls_counts(tmp_path: Path) -> None:
    own = {"tls.server.certPath": "mine.pem", "tls.server.keyPath": "mine.key", "flushDiskType": "SYNC_FLUSH"}
    settings = AccessFolder(tmp_path).secured_settings(["10.0.0.1"], own)
    assert settings["tls.server.certPath"] == "mine.pem"
    assert "tls.client.trustCertPath" not in settings
    assert "flushDiskType" not in settings
    assert not (tmp_path / "tls-server.pem").exists()
    open_wire = AccessFolder(tmp_path).secured_settings(["10.0.0.1"], {"tls.server.mode": "permissive"})
    assert open_wire["tls.server.mode"] == "permissive"
    assert "tls.server.mode" not in AccessFolder(tmp_path).secured_settings(["127.0.0.1"], {})


def test_users_without_anybody_who_may_administer_them(tmp_path: Path) -> None:
    users = AccessFolder(tmp_path)
    users.make()
    words = ["access", "user", "delete", "admin", "--yes", "--file", str(users.access)]
    assert CliRunner().invoke(app, words).exit_code == 0
    with pytest.raises(Exception, match="no enabled Super user"):
        users.make()
