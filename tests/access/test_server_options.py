"""What servers do on an address beyond loopback, and which settings no request may change."""

from __future__ import annotations

import logging
import re

import pytest

from kerolox.access.options import AccessOptions
from kerolox.access.server_options import ServerOptions
from kerolox.broker.options import BrokerOptions
from kerolox.controller.options import ControllerOptions
from kerolox.errors import OptionError
from kerolox.nameserver.options import NamesrvOptions
from kerolox.net.tls import ClientAuth, TlsMode
from kerolox.net.tls_options import TlsOptions
from kerolox.options import load, specs, to_properties

ROLES: tuple[type[ServerOptions], ...] = (BrokerOptions, NamesrvOptions, ControllerOptions)

each_role = pytest.mark.parametrize("role", ROLES, ids=[role.ROLE for role in ROLES])


@each_role
@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, TlsMode.PERMISSIVE),
        ({"authentication": True}, TlsMode.ENFORCING),
        ({"authentication": True, "bind_address": "::"}, TlsMode.ENFORCING),
        ({"authentication": True, "bind_address": "10.0.0.7"}, TlsMode.ENFORCING),
        ({"authentication": True, "bind_address": "broker.example.org"}, TlsMode.ENFORCING),
        ({"authentication": True, "bind_address": "127.0.0.1"}, TlsMode.PERMISSIVE),
        ({"authentication": True, "bind_address": "::1"}, TlsMode.PERMISSIVE),
        ({"authentication": True, "bind_address": "localhost"}, TlsMode.PERMISSIVE),
        ({"authentication": True, "tls_mode": TlsMode.PERMISSIVE}, TlsMode.PERMISSIVE),
        ({"authentication": True, "tls_mode": TlsMode.DISABLED}, TlsMode.DISABLED),
    ],
)
def test_tls_is_enforced_where_users_come_over_a_network(
    role: type[ServerOptions], given: dict[str, object], mode: TlsMode
) -> None:
    options = role(**given)
    assert options.tls.mode is mode
    assert (options.own_tls is not None) is (mode is TlsMode.ENFORCING)
    assert f"tls.server.mode={mode.value}\n" in to_properties(options)  # what holds is what is shown


def test_what_the_operator_says_counts() -> None:
    text = "authenticationEnabled=true\ntls.server.mode=permissive\n"
    loaded = load(BrokerOptions, file_text=text, file_name="broker.conf")
    assert loaded.options.tls.mode is TlsMode.PERMISSIVE
    rows = {key: (value, source) for key, value, source in loaded.rows()}
    assert rows["tls.server.mode"] == ("permissive", "broker.conf")
    unset = load(BrokerOptions, file_text="authenticationEnabled=true\n", file_name="broker.conf")
    rows = {key: (value, source) for key, value, source in unset.rows()}
    assert rows["tls.server.mode"] == ("enforcing", "default")


@each_role
def test_enforcing_by_default_needs_a_certificate_that_may_be_its_own(role: type[ServerOptions]) -> None:
    role(authentication=True).check_server()
    with pytest.raises(OptionError, match=r"tls\.server\.certPath.*tls\.server\.mode=permissive"):
        role(authentication=True, tls_self_signed=False).check_server()
    role(authentication=True, tls_self_signed=False, tls_certificate="c", tls_key="k").check_server()
    role(authentication=True, tls_self_signed=False, bind_address="127.0.0.1").check_server()


@each_role
@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ({}, True),
        ({"bind_address": "10.0.0.7"}, True),
        ({"bind_address": "127.0.0.1"}, False),
        ({"bind_address": "::1"}, False),
        ({"authentication": True}, False),
        ({"tls_mode": TlsMode.ENFORCING}, True),  # everybody speaks TLS
        ({"tls_mode": TlsMode.ENFORCING, "tls_client_auth": ClientAuth.OPTIONAL}, True),
        ({"tls_mode": TlsMode.PERMISSIVE, "tls_client_auth": ClientAuth.REQUIRE}, True),
        ({"tls_mode": TlsMode.ENFORCING, "tls_client_auth": ClientAuth.REQUIRE}, False),
    ],
)
def test_an_open_server_is_said_to_be_one(
    role: type[ServerOptions],
    given: dict[str, object],
    is_said: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        role(tls_own_verify=True, **given).check_server()
    said = [one for one in map(logging.LogRecord.getMessage, caplog.records) if "plain_clients" not in one]
    assert len(said) == is_said
    if is_said:
        assert f"open_to_everybody role={role.ROLE}" in said[0]
        assert "authenticationEnabled=true" in said[0]


def test_accounts_of_rocketmq_4_are_enough(caplog: pytest.LogCaptureFixture) -> None:
    """Its clients speak plainly by default, so TLS is not enforced for them."""
    options = BrokerOptions(acl=True)
    options.check_server()
    assert not caplog.records
    assert options.tls.mode is TlsMode.PERMISSIVE


# --- what no request may change -----------------------------------------------------------------------

TRUSTED = re.compile(r"path|addr|host|port$|file$|password|secret|credential|key$|user|class|command", re.I)


@each_role
def test_no_request_changes_what_others_trust_in(role: type[ServerOptions]) -> None:
    own = {spec.key for options in (TlsOptions, AccessOptions) for spec in specs(options)}
    changeable = [spec for spec in specs(role) if spec.changeable]
    assert changeable
    for spec in changeable:
        assert not spec.secret, spec.key
        assert spec.key not in own
        assert not (spec.kind in (str, str | None) and TRUSTED.search(spec.key)), spec.key
        assert not spec.key.startswith(("tls.", "etcd", "haTrusted", "bind", "metricsProm")), spec.key


@each_role
def test_secrets_are_never_shown(role: type[ServerOptions]) -> None:
    for spec in specs(role):
        if re.search(r"password|secret|credentials|initAuthenticationUser", spec.key, re.I):
            assert spec.secret, spec.key
    shown = to_properties(role(inner_credentials="hush", first_user="hush", tls_key_password="hush"))
    assert "hush" not in shown


@each_role
def test_the_black_list_is_read_by_one_rule(role: type[ServerOptions]) -> None:
    options = role(config_black_list="one; two")
    for key in ("one", "two", "configBlackList", "rocketmqHome"):
        assert options.black_listed(key)
    assert not options.black_listed("three")


def test_metrics_are_read_on_this_machine_unless_said_otherwise() -> None:
    assert BrokerOptions().metrics_host == "127.0.0.1"
    assert ControllerOptions().metrics_host in ("", "127.0.0.1")  # unset: loopback
