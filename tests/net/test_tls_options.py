"""The TLS options of every server, and the file of their own that RocketMQ keeps them in."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kerolox.broker.options import BrokerOptions
from kerolox.controller.options import ControllerOptions
from kerolox.errors import OptionError
from kerolox.nameserver.options import NamesrvOptions
from kerolox.net.tls import ClientAuth, TlsMode
from kerolox.net.tls_options import TLS_FILE, TlsOptions, with_tls_file
from kerolox.options import change, load, to_properties

ROLES: tuple[type[TlsOptions], ...] = (BrokerOptions, NamesrvOptions, ControllerOptions)


@pytest.mark.parametrize("role", ROLES)
def test_the_keys_of_rocketmq_are_those_of_every_server(role: type[TlsOptions]) -> None:
    lines = {
        "tls.server.mode": "enforcing", "tls.server.certPath": "s.pem", "tls.server.keyPath": "s.key",
        "tls.server.keyPassword": "one", "tls.server.trustCertPath": "ca.pem",
        "tls.server.need.client.auth": "require", "tls.server.authClient": "true",
        "tls.test.mode.enable": "false", "tls.client.certPath": "c.pem", "tls.client.keyPath": "c.key",
        "tls.client.keyPassword": "two", "tls.client.trustCertPath": "cas.pem",
        "tls.client.authServer": "true", "tls.enable": "true", "tls.config.file": "",
    }  # fmt: skip
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    loaded = load(role, file_text=text, file_name="server.conf")
    assert not loaded.unknown
    options = loaded.options
    options.check_tls()
    tls, own = options.tls, options.own_tls
    assert (tls.mode, tls.certificate, tls.key, tls.key_password) == (
        TlsMode.ENFORCING, "s.pem", "s.key", "one",
    )  # fmt: skip
    assert (tls.client_ca, tls.client_auth, tls.self_signed) == ("ca.pem", ClientAuth.REQUIRE, None)
    assert own is not None
    assert (own.ca, own.certificate, own.key, own.key_password, own.verify) == (
        "cas.pem", "c.pem", "c.key", "two", True,
    )  # fmt: skip
    shown = to_properties(options)
    assert "=one" not in shown
    assert "=two" not in shown
    for key in lines:  # none of them by a request
        with pytest.raises(OptionError):
            change(
                options, {key: "disabled" if key == "tls.server.mode" else "none" if "need" in key else "x"}
            )


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("key", ["tls.server.mode", "tls.server.need.client.auth", "tls.test.mode.enable"])
def test_an_unknown_value_is_refused_by_name(role: type[TlsOptions], key: str) -> None:
    with pytest.raises(OptionError, match=f"{key} = 'mandatory'"):
        load(role, file_text=f"{key}=mandatory\n", file_name="server.conf")


def test_which_tls_is_spoken_to_other_servers() -> None:
    assert NamesrvOptions().own_tls is None
    assert NamesrvOptions(tls_mode=TlsMode.ENFORCING).own_tls is not None
    assert NamesrvOptions(tls_enable=True).own_tls is not None
    assert NamesrvOptions(tls_enable=False, tls_mode=TlsMode.ENFORCING).own_tls is None
    with pytest.raises(OptionError, match="useTLS"):
        NamesrvOptions(tls_enable=False, use_tls=True).check_tls()
    with pytest.raises(OptionError, match=r"tls\.client\.keyPath"):
        NamesrvOptions(tls_own_certificate="c.pem").check_tls()


def test_what_is_not_as_it_may_seem_is_said(caplog: pytest.LogCaptureFixture) -> None:
    NamesrvOptions(tls_auth_client=False).check_tls()
    assert not caplog.records
    asking = NamesrvOptions(tls_auth_client=False, tls_client_auth=ClientAuth.REQUIRE, tls_client_ca="ca")
    with caplog.at_level(logging.WARNING):
        asking.check_tls()
        NamesrvOptions(tls_enable=True).check_tls()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "tls.server.authClient=false has no effect" in said[0]
    assert said[1].startswith("plain_clients_not_asked")
    assert said[2].startswith("servers_not_verified")


# --- a file of their own ------------------------------------------------------------------------------


def test_what_the_tls_file_says_wins(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=new.pem\ntls.server.need.client.auth=optional\ntls.servr.x=1\n")
    text = f"tls.config.file={file}\ntls.server.certPath=old.pem\ntls.server.keyPath=k\nlistenPort=7\n"
    loaded = with_tls_file(load(NamesrvOptions, file_text=text, file_name="namesrv.conf"))
    options = loaded.options
    assert (options.tls_certificate, options.tls_key, options.listen_port) == ("new.pem", "k", 7)
    assert options.tls_client_auth is ClientAuth.OPTIONAL
    assert loaded.sources["tls_certificate"] == str(file)
    assert loaded.sources["tls_key"] == "namesrv.conf"
    assert loaded.unknown == {"tls.servr.x": str(file)}


@pytest.mark.parametrize("line", ["tls.server.mode=enforcing", "tls.enable=true", "tls.config.file=x"])
def test_what_is_not_looked_for_in_the_file_is_refused_there(tmp_path: Path, line: str) -> None:
    """RocketMQ ignores it: who wrote it believes in TLS that is not there."""
    file = tmp_path / "tls.properties"
    file.write_text(line)
    with pytest.raises(OptionError, match=line.partition("=")[0]):
        with_tls_file(load(NamesrvOptions, flags={"tls_file": str(file)}))


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"tls\.config\.file"):
        with_tls_file(load(BrokerOptions, flags={"tls_file": str(tmp_path / "none")}))
    if not Path(TLS_FILE).exists():
        loaded = load(BrokerOptions)
        assert with_tls_file(loaded) is loaded


def test_wrong_values_in_the_file_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.need.client.auth=maybe\n")
    with pytest.raises(OptionError, match=r"need\.client\.auth = 'maybe' \(from .*tls\.properties\)"):
        with_tls_file(load(BrokerOptions, flags={"tls_file": str(file)}))
