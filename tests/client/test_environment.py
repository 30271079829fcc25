"""Keys and TLS from the environment and from files: who wins, and that no secret is ever shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kerolox import Client, ClientOptions, ClientTls
from kerolox.client.environment import VARIABLES, Keys, find_keys, find_tls, read_keys
from kerolox.errors import OptionError

SECRET = "s3cret-value"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


# --- keys ---------------------------------------------------------------------------------------------


def test_what_is_given_wins_over_the_environment_and_that_over_its_file(tmp_path: Path) -> None:
    around = {"KEROLOX_KEYS_FILE": written(tmp_path / "tools.yml", "accessKey: filed\nsecretKey: f\n")}
    assert find_keys(Keys(), environment=around) == Keys("filed", "f")
    around |= {"KEROLOX_ACCESS_KEY": "env", "KEROLOX_SECRET_KEY": "e", "KEROLOX_SECURITY_TOKEN": "t"}
    assert find_keys(Keys(), environment=around) == Keys("env", "e", "t")
    own = written(tmp_path / "own.yml", "accessKey: own\nsecretKey: o\n")
    assert find_keys(Keys(), keys_file=own, environment=around) == Keys("own", "o")
    assert find_keys(Keys("me", "m"), keys_file=own, environment=around) == Keys("me", "m")


def test_a_secret_of_another_user_is_not_taken(tmp_path: Path) -> None:
    around = {"KEROLOX_KEYS_FILE": written(tmp_path / "tools.yml", "accessKey: filed\nsecretKey: f\n")}
    with pytest.raises(OptionError, match=r"access_key = 'me'.*KEROLOX_SECRET_KEY"):
        find_keys(Keys("me"), environment=around)
    assert find_keys(Keys("filed"), environment=around) == Keys("filed", "f")
    assert find_keys(Keys("me"), environment={"KEROLOX_SECRET_KEY": "e"}) == Keys("me", "e")
    around = {"KEROLOX_ACCESS_KEY": "env", "KEROLOX_SECRET_KEY": "e", "KEROLOX_SECURITY_TOKEN": "t"}
    assert find_keys(Keys("me", "m"), environment=around) == Keys("me", "m")  # nor is another's token


def test_a_secret_in_a_file_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path / "secret", f"{SECRET}\n")
    assert find_keys(Keys("me"), secret_key_file=path, environment={}) == Keys("me", SECRET)
    around = {"KEROLOX_ACCESS_KEY": "me", "KEROLOX_SECRET_KEY_FILE": path}
    assert find_keys(Keys(), environment=around) == Keys("me", SECRET)


@pytest.mark.parametrize("text", ["", "\n", "one\ntwo\n"])
def test_a_file_with_more_or_less_than_a_secret_is_refused(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "secret", text)
    with pytest.raises(OptionError, match="one line, the secret") as caught:
        ClientOptions(access_key="me", secret_key_file=path)
    assert "two" not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"absent.*No such file"):
        ClientOptions(keys_file=str(tmp_path / "absent"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="it is not text"):
        ClientOptions(keys_file=str(tmp_path / "bytes"))


def test_a_file_that_others_may_read_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "open", f"accessKey: me\nsecretKey: {SECRET}\n", 0o644)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            read_keys("keys_file", path)
    assert [message for message in caplog.messages if "chmod 600" in message] == caplog.messages[:1]
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("secretKey: 12345678", "12345678"),
        ("secretKey:   spaced out  ", "spaced out"),
        ("secretKey: 'it''s'  # quoted", "it's"),
        ('secretKey: "a\\"b#c"', 'a"b#c'),
        ("secretKey: a#b # a comment", "a#b"),
        ("secretKey:", ""),
        ("secretKey: # nothing", ""),
        ("secretKey: 'open", ""),
        ('secretKey: "open', ""),
        ("secretKey:glued", ""),
        ("  secretKey: of something else", ""),
        ("secretKeys: [a]", ""),
    ],
)
def test_lines_of_tools_yml(tmp_path: Path, line: str, found: str) -> None:
    path = written(tmp_path / "tools.yml", f"# as Apache ships it\naccessKey: me\n{line}\nother: 1\n")
    assert read_keys("keys_file", path) == Keys("me", found)


def test_half_a_pair_is_refused_and_a_lone_variable_is_not() -> None:
    with pytest.raises(OptionError, match="access_key and secret_key, or neither") as caught:
        ClientOptions(secret_key=SECRET)
    assert SECRET not in str(caught.value)
    with pytest.raises(OptionError, match="its secret key"):
        ClientOptions(access_key="me")
    # Queries that name a user take it; others go unsigned.
    assert find_keys(Keys(), environment={"KEROLOX_SECRET_KEY": SECRET}) == Keys()


# --- TLS ----------------------------------------------------------------------------------------------


def test_tls_by_the_environment() -> None:
    assert find_tls({}, environment={}) is None
    assert find_tls({}, environment={"KEROLOX_CLIENT_TLS": "on"}) == ClientTls()
    around = {"KEROLOX_CLIENT_TLS": "ON", "KEROLOX_CLIENT_TLS_CA": "a", "KEROLOX_CLIENT_TLS_VERIFY": "off"}
    assert find_tls({}, environment=around) == ClientTls(ca="a", verify=False)
    assert find_tls({"ca": "b"}, environment=around) == ClientTls(ca="b", verify=False)
    assert find_tls({}, on=False, environment=around) is None
    assert find_tls({}, environment=around | {"KEROLOX_CLIENT_TLS": "off"}) is None
    with pytest.raises(OptionError, match=r"KEROLOX_CLIENT_TLS_VERIFY = 'perhaps'.*on or off"):
        find_tls({}, environment=around | {"KEROLOX_CLIENT_TLS_VERIFY": "perhaps"})


def test_an_authority_without_tls_is_refused() -> None:
    around = {"KEROLOX_CLIENT_TLS_CA": "ca.pem"}
    with pytest.raises(OptionError, match=r"KEROLOX_CLIENT_TLS_CA.*KEROLOX_CLIENT_TLS=on"):
        find_tls({}, environment=around)
    assert find_tls({}, on=True, environment=around) == ClientTls(ca="ca.pem")


def test_the_password_of_a_key_from_a_file(tmp_path: Path) -> None:
    around = {
        "KEROLOX_CLIENT_TLS": "on",
        "KEROLOX_CLIENT_TLS_KEY_PASSWORD_FILE": written(tmp_path / "p", SECRET),
    }
    found = find_tls({}, environment=around)
    assert found is not None
    assert found.key_password == SECRET


# --- options ------------------------------------------------------------------------------------------


def test_every_client_goes_by_the_environment_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEROLOX_ACCESS_KEY", "env")
    monkeypatch.setenv("KEROLOX_SECRET_KEY", SECRET)
    monkeypatch.setenv("KEROLOX_CLIENT_TLS", "on")
    found = Client("127.0.0.1:1").options
    assert (found.access_key, found.secret_key, found.tls) == ("env", SECRET, ClientTls())
    assert ClientOptions(tls=ClientTls(ca="a")).tls == ClientTls(ca="a")
    alone = ClientOptions("127.0.0.1:1", environment=False)
    assert (alone.access_key, alone.tls) == ("", None)


def test_no_secret_is_shown() -> None:
    tls = ClientTls(ca="ca.pem", key_password=SECRET)
    options = ClientOptions("h:1", access_key="me", secret_key=SECRET, security_token=SECRET, tls=tls)
    assert SECRET not in f"{options!r} {options} {tls!r} {Keys('me', SECRET, SECRET)!r} {Client(options)!r}"
    assert "'me'" in repr(options)
