"""Imports point the way the data flows, and the tree keeps its habits."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "kerolox"

# Who may import whom. Modules directly below kerolox (errors, clock, options, ...) are one layer, "base".
ALLOWED = {
    "base": {"base", "protocol"},
    "protocol": {"protocol", "errors"},
    "front": {"front", "protocol", "base"},
    "net": {"net", "front", "protocol", "base"},
    "access": {"access", "net", "front", "protocol", "base"},
    "nameserver": {"nameserver", "access", "net", "front", "protocol", "base"},
    "controller": {"controller", "access", "net", "front", "protocol", "base"},
    "store": {"store", "protocol", "base"},
    # A broker that may not write its own log sends as a client does (broker/write/remote_outlet.py).
    "broker": {
        "broker",
        "proxy",
        "store",
        "replication",
        "client",
        "access",
        "net",
        "front",
        "protocol",
        "base",
    },
    "proxy": {"proxy", "net", "front", "protocol", "base"},
    # A DLedger member answers requests on a port of its own.
    "replication": {"replication", "store", "net", "front", "protocol", "base"},
    "client": {"client", "net", "front", "protocol", "base"},
    "spark": {"spark", "client", "store", "protocol", "base"},
    "pipeline": {"pipeline", "spark", "client", "store", "protocol", "base"},
    # Processes as one unit: up, cluster up and the broker of the demo.
    "supervise": {
        "supervise",
        "access",
        "nameserver",
        "controller",
        "client",
        "net",
        "front",
        "protocol",
        "base",
    },
    "load": {"load", "client", "net", "front", "protocol", "base"},
    "demo": {"demo", "supervise", "spark", "pipeline", "client", "net", "front", "protocol", "base"},
    "testing": None,  # on top of everything
    "cli": None,
}
# The rooms of each package from the ground up; a module beside the rooms has the storey that names it. A room
# never imports one that comes later here.
ROOMS = {
    "supervise": (
        "embedded process stopping",
        "layouts",
        "folder",
        "cluster etcd replicas",
    ),
    "demo": ("broker queries streams", "shop", "page", "demo"),
    "load": ("figures", "senders consumers"),
    "store": (
        "errors delay_table options state failures standing_failures",
        "disk",
        "log",
        "queue",
        "index",
        "timer",
        "tables",
        "dispatch",
        "retention recovery verdict notes",
        "offline",
        "parts saving opening rebuild repair housekeeping expiry truncate ledger message_store",
    ),
    "broker": (
        "absent names bounds options endpoints address",
        "role",
        "base",
        "tables",
        "access",
        "nameservers",
        "members",
        "figures",
        "write",
        "later",
        "transactions",
        "consume",
        "produce",
        "pop",
        "replication",
        "copies",
        "fellows",
        "configured controlled dledger",
        "admin",
        "remoting",
        "proxy",
        "listeners broker",
    ),
    "access": (
        "resources",
        "policies",
        "book options server_options",
        "needs",
        "sources",
        "book_file audit decisions failures replays explain",
        "guard",
        "server_access metrics_server",
        "plain",
        "key_file folder",
    ),
    "controller": (
        "etcd_access options state requests",
        "apply election decision",
        "knowledge",
        "masters evidence",
        "decide",
        "live",
        "carriers",
        "notices",
        "term figures",
        "handlers",
        "controller",
    ),
    "client": (
        "errors messages message_types names ids addresses environment options stamps user_code",
        "calls",
        "nameservers",
        "cluster",
        "send",
        "consume",
        "sockets",
        "admin",
        "blocking",
    ),
    "proxy": (
        "checks",
        "messages queue_choice receipts half_messages credentials",
        "backend settings",
        "routes clients",
        "pops",
        "renewals",
        "sending transactions receiving telemetry",
        "service",
    ),
    "spark": (
        "columns last_read offsets option_table configured times java worker_daemon worker_memory"
        " short_errors record_columns records shipping patient_start",
        "bodies",
        "source",
        "sink",
        "store",
        "datasource session",
    ),
    "pipeline": (
        "charts page_style copy_properties runner task_process",
        "lake",
        "archive",
        "audit",
        "replay",
        "rebuild",
        "transfer",
        "flows",
    ),
}
# protocol and front do no I/O.
NO_IO = {
    "asyncio",
    "socket",
    "ssl",
    "selectors",
    "threading",
    "os",
    "pathlib",
    "tempfile",
    "subprocess",
}
LINES_MAX = 700  # about 400 is the habit; one noun is not split in two for the sake of a number

MODULES = sorted(SOURCE.rglob("*.py"))


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (SOURCE / parts[1]).is_dir() else "base"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if (SOURCE.parent / node.module.replace(".", "/")).is_dir():
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return frozenset(found)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_flow(path: Path) -> None:
    module = "kerolox." + ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    # The entry point and the front door for users lead into every house.
    top = path.parent == SOURCE and path.name in ("__main__.py", "__init__.py", "blocking.py")
    layer = "cli" if top else layer_of(module)
    allowed = ALLOWED[layer]
    for name in imports_of(path):
        if name.split(".")[0] != "kerolox":
            if layer in ("protocol", "front"):
                # Requests wait in front's lanes, so it has tasks.
                forbidden = NO_IO - {"asyncio"} if layer == "front" else NO_IO
                assert name.split(".")[0] not in forbidden, f"{module} does I/O: imports {name}"
            continue
        if allowed is None or name == "kerolox":
            continue
        target = layer_of(name)
        if layer == "protocol" and target == "base":
            assert name in ("kerolox.errors", "kerolox.compiled", "kerolox.shown_text"), (
                f"{module} imports {name}"
            )
        else:
            assert target in allowed, f"{module} ({layer}) imports {name} ({target}), against the flow"


def test_decisions_of_clients_do_no_io() -> None:
    """The client with an event loop and the one with sockets share them."""
    for path in (SOURCE / "client" / "calls").glob("*.py"):
        for name in imports_of(path):
            assert name.split(".")[0] not in NO_IO | {"time"}, f"{path} does I/O: imports {name}"
            assert not name.startswith("kerolox.net"), f"{path} imports {name}"


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_imports_one_above_it(package: str) -> None:
    storey = {name: number for number, names in enumerate(ROOMS[package]) for name in names.split()}
    there = {path.stem for path in (SOURCE / package).iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - {"__init__", "__pycache__", "FORMAT"} == set(storey), "each room and module has a storey"
    for path in (SOURCE / package).rglob("*.py"):
        room = path.relative_to(SOURCE / package).parts[0].removesuffix(".py")
        if room == "__init__":
            continue  # the package's front door
        for name in imports_of(path):
            parts = name.split(".")
            if parts[:2] == ["kerolox", package] and len(parts) > 2:
                assert storey.get(parts[2], 0) <= storey[room], f"{path} imports {name}, above it"


def test_nobody_imports_cli_or_testing() -> None:
    for path in MODULES:
        layer = path.relative_to(SOURCE).parts[0]
        for name in imports_of(path):
            target = layer_of(name)
            if target == "cli":
                assert layer in ("cli", "__main__.py"), f"{path} imports {name}"
            if target == "testing":
                assert layer == "testing", f"{path} imports {name}"


def test_time_limits_leave_cancellation_alone() -> None:
    """Python 3.11's ``asyncio.wait_for`` loses a cancellation that comes together with its result: whoever
    cancelled waits for ever. ``asyncio.timeout`` does not."""
    for path in MODULES:
        assert "asyncio.wait_for(" not in path.read_text(), f"{path}: use asyncio.timeout"


def test_modules_stay_readable() -> None:
    long = {
        str(p.relative_to(SOURCE)): n for p in MODULES if (n := len(p.read_text().splitlines())) > LINES_MAX
    }
    assert not long, f"split what holds two nouns: {long}"


def test_names_have_found_their_noun() -> None:
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                assert not node.name.endswith(("Manager", "Helper", "Util", "Utils", "Impl", "Factory")), (
                    f"{path}: {node.name}"
                )


# Listeners whose failure stops the event, called in their order. All others are Observers.
STEPS = {"store/message_store.py": "on_truncated", "replication/dledger/member.py": "on_role"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_listeners_are_observers(path: Path) -> None:
    """A loop over listeners ends at the first that fails, and takes the event with it."""
    called = [
        ast.unparse(loop.iter)
        for loop in ast.walk(tree_of(path))
        if isinstance(loop, ast.For) and re.fullmatch(r"(list\()?self\._?on_\w+\)?", ast.unparse(loop.iter))
    ]
    step = STEPS.get(str(path.relative_to(SOURCE)))
    assert called == ([] if step is None else [f"self.{step}"])


# What constructors and rooms may set on other objects: values that the same function has just made.
SET_FROM_OUTSIDE = {
    "base.py": {"body_bytes_max", "age_s_max"},  # limits of lanes, some changed by options
    "opening.py": {"deleted", "end", "dispatched_from", "flushed_ms", "cut"},  # a start's own rule and result
}
WIRES = {
    *("room.py", "broker.py", "base.py", "listeners.py"),
    *("message_store.py", "opening.py", "truncate.py", "housekeeping.py", "saving.py"),
}


@pytest.mark.parametrize(
    "path",
    sorted(path for room in ("broker", "store", "replication") for path in (SOURCE / room).rglob("*.py")),
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_parts_of_the_broker_are_finished_by_their_constructors(path: Path) -> None:
    """An attribute that another part sets later is None until then, and one that is forgotten is silent."""
    wires = path.name in WIRES
    allowed = SET_FROM_OUTSIDE.get(path.name, set())
    for function in ast.walk(tree_of(path)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and (
            wires or function.name == "__init__"
        ):
            for node in ast.walk(function):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                for target in [one for each in targets for one in getattr(each, "elts", [each])]:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self":
                        assert target.attr in allowed, f"{path}: sets {ast.unparse(target)}"
