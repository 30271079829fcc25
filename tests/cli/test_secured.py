"""Commands at servers that take TLS alone and known users alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.client.environment import VARIABLES
from kerolox.testing.access import ADMIN
from tests.secured_servers import ALICE, SecuredServers, secured_servers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    with secured_servers(tmp_path_factory.mktemp("secured")) as running:
        running.create_topic("secured-orders")
        yield running


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Flags before a command stay in the environment of its process, which here is the test's."""
    for name in (*VARIABLES, "ROCKETMQ_HOME", "NAMESRV_ADDR"):
        monkeypatch.setenv(name, "")  # what it was is put back afterwards
        monkeypatch.delenv(name)
    return CliRunner()


def written(path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'accessKey: {ADMIN.access_key}\nsecretKey: "{ADMIN.secret_key}"\n')
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("cluster", "list"),
        ("topic", "route", "secured-orders"),
        ("send", "secured-orders", "by a command"),
        ("group", "list"),
    ],
    ids=" ".join,
)
def test_flags_before_a_command(
    servers: SecuredServers, runner: CliRunner, tmp_path: Path, words: tuple[str, ...]
) -> None:
    flags = ("--keys-file", written(tmp_path / "keys.yml"), "--tls-ca", servers.ca)
    done = runner.invoke(app, [*flags, *words, "-n", servers.nameserver])
    assert done.exit_code == 0, done.output


def test_messages_are_followed(servers: SecuredServers, runner: CliRunner, tmp_path: Path) -> None:
    flags = ("--keys-file", written(tmp_path / "keys.yml"), "--tls-ca", servers.ca)
    for words in (("send", "secured-orders", "to be seen"), ("tail", "secured-orders", "--from", "0")):
        more = ("--count", "1") if words[0] == "tail" else ()
        done = runner.invoke(app, [*flags, *words, *more, "-n", servers.nameserver])
        assert done.exit_code == 0, done.output


def test_the_environment(servers: SecuredServers, runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in servers.variables(ALICE).items():
        monkeypatch.setenv(name, value)
    done = runner.invoke(app, ["topic", "route", "secured-orders"])
    assert done.exit_code == 0, done.output
    plain = runner.invoke(app, ["--no-tls", "topic", "route", "secured-orders"])
    assert plain.exit_code == 1, plain.output


def test_the_keys_of_mqadmin(
    servers: SecuredServers, runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--tls-ca", servers.ca, "topic", "list", "-n", servers.nameserver]
    refused = runner.invoke(app, words)
    assert refused.exit_code == 1
    assert "access denied" in refused.output
    written(tmp_path / "conf" / "tools.yml")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "secured-orders" in done.output
