from __future__ import annotations

import ast
import enum
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import kerolox
from kerolox.broker.options import BrokerOptions
from kerolox.errors import InvalidRequest, OptionError
from kerolox.nameserver.options import NamesrvOptions
from kerolox.options import Options, Spec, change, load, option, sample, specs, to_properties


class Colour(enum.Enum):
    RED = "RED_ONE"
    BLUE = "BLUE_ONE"


@dataclass
class Demo(Options):
    listen_port: int = option(9876, "Port.", low=0, high=65535)
    name: str = option("x", "Name.", key="brokerName", changeable=True)
    enabled: bool = option(False, "Switch.", changeable=True)
    colour: Colour = option(Colour.RED, "Colour.")
    address: str | None = option(None, "Address.", key="namesrvAddr", environment="NAMESRV_ADDR")
    password: str | None = option(None, "Secret.", secret=True)
    ratio: float = option(0.5, "Ratio.", low=0)


@pytest.mark.parametrize(
    "key",
    ["sendThreadPoolQueueCapacity", "osPageCacheBusyTimeOutMills", "useEpollNativeSelector", "useTLS",
     "clusterTest", "jraftConfig"],
)  # fmt: skip
def test_settings_of_rocketmq_are_not_called_misspelt(key: str, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(BrokerOptions, file_text=f"{key}=true\nbrokrName=x\n", file_name="x.conf")
    if any(spec.key == key for spec in specs(BrokerOptions)):
        assert loaded.unknown == {"brokrName": "x.conf"}
        return
    assert loaded.slips() == [("brokrName", "x.conf", " Did you mean brokerName?")]
    loaded.warn_unknown()
    assert f"option_without_effect key={key!r} source=x.conf" in caplog.text
    assert "option_unknown key='brokrName'" in caplog.text
    assert f"option_unknown key={key!r}" not in caplog.text
    caplog.clear()
    change(loaded.options, {key: "true"})
    assert f"option_without_effect key={key!r} source=update" in caplog.text


def test_defaults_file_environment_flags_in_this_order() -> None:
    loaded = load(
        Demo,
        file_text="listenPort=1\nbrokerName=file\nenabled=TRUE\ncolour=BLUE_ONE\n# comment\nunheard=of\n",
        file_name="x.conf",
        environment={"KEROLOX_NAME": "env", "NAMESRV_ADDR": "a:1;b:2", "OTHER": "1"},
        flags={"name": "flag", "ratio": None},
    )
    options = loaded.options
    assert (options.listen_port, options.name, options.enabled) == (1, "flag", True)
    assert (options.colour, options.address, options.ratio) == (Colour.BLUE, "a:1;b:2", 0.5)
    assert loaded.sources["listen_port"] == "x.conf"
    assert loaded.sources["name"] == "flag"
    assert loaded.sources["address"] == "environment NAMESRV_ADDR"
    assert loaded.unknown == {"unheard": "x.conf"}
    assert ("listenPort", "1", "x.conf") in loaded.rows()
    assert ("ratio", "0.5", "default") in loaded.rows()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listenPort=abc", "option listenPort = 'abc' .*x.conf.*a whole number from 0 to 65535"),
        ("listenPort=70000", "from 0 to 65535"),
        ("enabled=yes", "true or false"),
        ("colour=GREEN", "RED_ONE, BLUE_ONE"),
        ("ratio=-1", "at least 0"),
    ],
)
def test_wrong_values_name_key_value_source_and_expectation(text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        load(Demo, file_text=text, file_name="x.conf")


def test_a_slip_in_a_key_is_told_with_what_was_meant(caplog: pytest.LogCaptureFixture) -> None:
    load(Demo, file_text="listenport=1\nbrokername=b\nunheard=of\n", file_name="x.conf").warn_unknown()
    slip, other, stranger = caplog.messages
    assert "key='listenport' source=x.conf" in slip
    assert "Did you mean listenPort?" in slip
    assert "Did you mean brokerName?" in other
    assert "Did you mean" not in stranger


def test_only_changeable_options_change_and_all_or_none() -> None:
    options = Demo()
    assert change(options, {"brokerName": "new", "enabled": "true", "unheard": "x"}) == {
        "name": "new",
        "enabled": True,
    }
    with pytest.raises(OptionError, match="restart"):
        change(options, {"enabled": "false", "listenPort": "1"})
    assert options.enabled is True
    assert change(options, {"listenPort": "9876"}) == {}  # no change is no refusal


def test_properties_and_sample_show_every_option_but_no_secret() -> None:
    options = Demo(password="hunter2", address="a:1")
    text = to_properties(options)
    assert "listenPort=9876" in text
    assert "hunter2" not in text
    assert load(Demo, file_text=to_properties(Demo())).options == Demo()
    generated = sample(Demo)
    for spec in specs(Demo):
        assert f"#{spec.key}=" in generated


NUMBERS = [
    (role, spec)
    for role in (BrokerOptions, NamesrvOptions)
    for spec in specs(role)
    if spec.kind in (int, float) and spec.key not in role.ABSENT  # those are refused with another reason
]


@pytest.mark.parametrize(("role", "spec"), NUMBERS, ids=[spec.key for _, spec in NUMBERS])
def test_every_number_has_a_range_at_the_start_and_while_running(role: type[Options], spec: Spec) -> None:
    assert spec.low is not None
    assert spec.high is not None
    assert spec.low <= spec.default <= spec.high
    for wrong in (spec.low - 1, spec.high + 1, 10**30):
        says = rf"option {re.escape(spec.key)} = '?{wrong}'? .*from {spec.low} to {spec.high}"
        with pytest.raises(OptionError, match=says):
            load(role, file_text=f"{spec.key}={wrong}", file_name="x.conf")
        with pytest.raises(OptionError, match=says):
            change(role(), {spec.key: str(wrong)})
    for good in (spec.low, spec.high):
        assert getattr(load(role, file_text=f"{spec.key}={good}").options, spec.name) == good


def test_texts_are_bounded_and_what_is_no_number_is_refused() -> None:
    with pytest.raises(OptionError, match="at most 4096 characters"):
        change(Demo(), {"brokerName": "x" * 5000})
    with pytest.raises(OptionError, match="a number"):
        load(Demo, file_text="ratio=nan")


def test_so_many_options_are_changed_at_once() -> None:
    with pytest.raises(InvalidRequest, match="1001 options at once, the limit is 1000"):
        change(Demo(), {f"key{number}": "x" for number in range(1001)})


def test_options_are_settings_and_nothing_else_is_kept_in_them() -> None:
    """Only who is asked to change an option writes one; what is found out at run time has its own place."""
    root = Path(kerolox.__file__).parent
    written = {
        f"{path.relative_to(root)}:{node.lineno}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node.value).rpartition(".")[2] in ("options", "_options")
        if path.relative_to(root).parts[0] in ("broker", "store", "nameserver", "net", "front")
    }
    assert written == set()
