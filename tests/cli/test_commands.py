"""Commands against a running name server, as people and as programs see them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.cli.nameservers import split_addresses
from kerolox.cli.serving import listen_address
from kerolox.errors import OptionError
from kerolox.nameserver.brokers import BrokerRegistration
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig
from kerolox.testing.nameserver import running_nameserver
from tests.docs.cli_reference import commands

runner = CliRunner()
NOBODY = "127.0.0.1:1"


def fill(routes: Any) -> None:
    for id, address in ((0, "127.0.0.1:1"), (1, "127.0.0.1:2")):
        routes.register(
            BrokerRegistration(
                cluster="c1",
                name="broker-a",
                id=id,
                address=address,
                version=DataVersion(),
                topics={
                    name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, perm=perm)
                    for name, perm in (("[t1]", 6), ("t2", 4))
                },
                connection=address,
                timeout_s=1e9,
            ),
            0.0,
        )


@contextmanager
def serving_nameserver(
    directory: Path, prepare: Callable[[Any], None] = lambda routes: None
) -> Iterator[str]:
    """A name server in a thread: commands run an event loop of their own."""
    import asyncio

    started = threading.Event()
    found: list[Any] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with running_nameserver(directory=directory) as nameserver:
            prepare(nameserver.routes)
            found.extend((nameserver.address, asyncio.get_running_loop(), stop))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield found[0]
    finally:
        found[1].call_soon_threadsafe(found[2].set)
        thread.join(10)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A name server with two brokers."""
    with serving_nameserver(tmp_path, fill) as running:
        yield running


def ok(*args: str, **environment: str) -> str:
    result = runner.invoke(app, args, env=environment)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*args: str, **environment: str) -> Any:
    return json.loads(ok(*args, "--json", **environment))


def error(*args: str) -> str:
    result = runner.invoke(app, args)
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("kerolox: ")
    return line


def test_cluster_list(address: str) -> None:
    """Brokers that do not answer are shown without figures."""
    nothing = dict.fromkeys(("version", "inTps", "outTps", "inToday", "outToday", "diskUsed", "active"))
    assert as_json("cluster", "list", "-n", address) == [
        {
            "cluster": "c1",
            "broker": "broker-a",
            "id": 0,
            "role": "master",
            "address": "127.0.0.1:1",
            "zone": None,
            **nothing,
        },
        {
            "cluster": "c1",
            "broker": "broker-a",
            "id": 1,
            "role": "slave",
            "address": "127.0.0.1:2",
            "zone": None,
            **nothing,
        },
    ]
    shown = ok("cluster", "list", "-n", address).splitlines()
    assert shown[0].split()[:6] == ["cluster", "broker", "id", "role", "address", "zone"]
    assert shown[2].split() == ["c1", "broker-a", "0", "master", "127.0.0.1:1"]


def test_topic_list(address: str) -> None:
    assert as_json("topic", "list", "-n", address) == ["[t1]", "t2"]
    assert as_json("topic", "list", "--cluster", "c1", "-n", address) == ["[t1]", "t2"]
    assert "[t1]" in ok("topic", "list", "-n", address)  # not taken for markup


def test_topic_route(address: str) -> None:
    route = as_json("topic", "route", "t2", "-n", address)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:1", "1": "127.0.0.1:2"}
    shown = ok("topic", "route", "t2", "-n", address).splitlines()
    assert shown[0] == "topic t2"
    assert shown[3].split() == ["broker-a", "c1", "read", "4", "4", "127.0.0.1:1", "127.0.0.1:2"]
    assert "read, write" in ok("topic", "route", "[t1]", "-n", address)
    assert "topic 'nowhere' does not exist" in error("topic", "route", "nowhere", "-n", address)


def test_kv(address: str) -> None:
    assert ok("kv", "put", "n", "k", "v", "-n", address) == "n k was set\n"
    assert ok("kv", "get", "n", "k", "-n", address) == "v\n"
    assert as_json("kv", "get", "n", "k", "-n", address) == "v"
    assert as_json("kv", "put", "n", "k2", "v2", "-n", address)["value"] == "v2"
    assert as_json("kv", "list", "n", "-n", address) == {"k": "v", "k2": "v2"}
    assert ok("kv", "delete", "n", "k", "-n", address) == "n k was deleted\n"
    assert "has no key 'k'" in error("kv", "get", "n", "k", "-n", address)
    assert "namespace 'x' does not exist" in error("kv", "list", "x", "-n", address)


def test_name_servers_are_tried_in_turn_and_found_in_the_environment(address: str) -> None:
    for addresses in (f"{NOBODY};{address}", f"{NOBODY},{address}", f"{address};{NOBODY}"):
        assert as_json("topic", "list", "-n", addresses) == ["[t1]", "t2"]
        assert as_json("topic", "list", NAMESRV_ADDR=addresses) == ["[t1]", "t2"]
    # A change is for all of them: one that is missing would answer otherwise tomorrow.
    assert NOBODY in error("kv", "put", "n", "k", "v", "-n", f"{address};{NOBODY}")


def test_errors_are_one_line() -> None:
    assert "cannot connect to 127.0.0.1:1" in error("cluster", "list", "-n", NOBODY)
    both = error("cluster", "list", "-n", f"{NOBODY};127.0.0.1:2")
    assert "127.0.0.1:1" in both
    assert "127.0.0.1:2" in both
    assert "host:port" in error("cluster", "list", "-n", " ; ")
    assert "host:port" in error("cluster", "list", "-n", "nonsense")


EVERY = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", [(), *EVERY], ids=" ".join)
def test_every_help_has_an_example(words: tuple[str, ...]) -> None:
    shown = " ".join(ok(*words, "--help").split())
    assert f"Example: kerolox {' '.join(words)}".strip() in shown


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_speaks_to_programs_and_knows_the_names_of_options(words: tuple[str, ...]) -> None:
    options = {name: option for option in EVERY[words].params for name in option.opts}
    assert "--json" in options
    group, name = words[0], words[-1]
    makers = {"dlq": ("export",), "pipeline": ("archive", "audit", "rebuild", "split", "merge")}
    writes = name in makers.get(group, ())
    assert writes == ("-o" in options)
    assert not writes or {"--out", "-o"} <= set(options["-o"].opts)
    for option in options.values():
        assert option.param_type_name == "argument" or option.help, option.name


def test_slips_in_commands_and_options_are_told() -> None:
    for words, meant in (
        (["grop"], "group"),
        (["group", "lagg"], "lag"),
        (["group", "lag", "g", "--topc", "t"], "--topic"),
    ):
        result = runner.invoke(app, words)
        assert result.exit_code == 2
        assert meant in result.output
    said = error("broker", "--set", "flushDiskTyp=SYNC_FLUSH")
    assert said.endswith("Did you mean flushDiskType?")


def test_completion() -> None:
    def completed(*words: str) -> list[str]:
        environment = {
            "_KEROLOX_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        return runner.invoke(app, prog_name="kerolox", env=environment).stdout.split()

    assert completed("kerolox", "gro") == ["group"]
    assert completed("kerolox", "group", "la") == ["lag"]
    assert "--order-key" in completed("kerolox", "send", "--o")
    assert {"--install-completion", "--show-completion"} <= set(ok("--help").split())


def test_version() -> None:
    assert ok("--version") == f"kerolox {as_json('version')['kerolox']}\n"
    assert set(as_json("version")) == {
        "kerolox",
        "python",
        "platform",
        "eventLoop",
        "core",
        "protocol",
        "protocolVersion",
    }
    assert "RocketMQ 5.5.0 (version 513)" in ok("version")


def test_print_config(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=9999\nscanNotActiveBrokerInterval=1000\n")
    arguments = ["nameserver", "-c", str(file), "--listen", ":1234", "--print-config"]
    shown = as_json(*arguments, KEROLOX_ENABLE_TOPIC_LIST="false")
    assert shown["listenPort"] == {"value": "1234", "source": "flag"}
    assert shown["bindAddress"]["value"] == "0.0.0.0"
    assert shown["configStorePath"]["value"] == str(file)
    assert shown["scanNotActiveBrokerInterval"] == {"value": "1000", "source": str(file)}
    assert shown["enableTopicList"]["source"] == "environment KEROLOX_ENABLE_TOPIC_LIST"
    assert shown["supportActingMaster"] == {"value": "false", "source": "default"}
    assert "1234" in ok(*arguments)
    file.write_text("listenport=9999\n")
    told = runner.invoke(app, arguments).stderr
    assert (
        told
        == f"kerolox: listenport in {file} is not an option and has no effect. Did you mean listenPort?\n"
    )


def test_wrong_settings_stop_the_server_before_it_starts(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=many\n")
    assert f"listenPort = 'many' (from {file})" in error("nameserver", "-c", str(file))
    assert "missing.conf" in error("nameserver", "-c", str(tmp_path / "missing.conf"))
    assert "--listen" in error("nameserver", "--listen", "nonsense")


def test_addresses() -> None:
    assert split_addresses("a:1;b:2,c:3; ") == ["a:1", "b:2", "c:3"]
    assert split_addresses("http://a:1/") == ["a:1"]
    assert listen_address("[::1]:0") == ("::1", 0)
    assert listen_address(":9876") == ("0.0.0.0", 9876)
    for wrong in ("9876", "host:", "host:99999", "host:-1"):
        with pytest.raises(OptionError):
            listen_address(wrong)
