"""Every file in ``examples`` runs, as its first lines say, against a real broker."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from kerolox.testing import BrokerThread

EXAMPLES = Path(__file__).parents[2] / "examples"

# What each prints, in part.
SCRIPTS = {
    "quickstart.py": ["sent order 9: queue ", "billing order 7 (o-7)"],
    "ordered.py": ["o-3: placed → paid → packed → sent"],
    "transaction.py": ["o-2 not placed: CHECK constraint failed", "delivered: o-1 100, o-3 70"],
    "delay.py": ["s  now\n", "s  level 1\n", "s  after 2 s\n", "s  at a time\n"],
    "pull_to_pandas.py": ["10000 readings", "s-4"],
}
NEEDS = {"pull_to_pandas.py": "pandas"}  # too heavy to be installed for this one test
OTHERS = {"fastapi_service.py", "test_orders.py"}


def run(*command: str, nameserver: str = "") -> str:
    environment = {**os.environ, "NAMESRV_ADDR": nameserver, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.kerolox(recall=True)
@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, kerolox_broker: BrokerThread) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    printed = run(str(EXAMPLES / name), nameserver=kerolox_broker.nameserver_address)
    for words in SCRIPTS[name]:
        assert words in printed


def test_the_tests_with_the_fixture() -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(EXAMPLES), "-c", os.devnull]
    assert "4 passed" in run(*command, str(EXAMPLES / "test_orders.py"))


async def test_the_web_service(kerolox_broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    kerolox_broker.create_topic("orders")
    monkeypatch.setenv("NAMESRV_ADDR", kerolox_broker.nameserver_address)
    spec = importlib.util.spec_from_file_location("fastapi_service", EXAMPLES / "fastapi_service.py")
    assert spec is not None
    assert spec.loader is not None
    service = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)

    transport = httpx.ASGITransport(app=service.app)
    async with (
        service.lifespan(service.app),
        httpx.AsyncClient(transport=transport, base_url="http://service") as web,
    ):
        placed = await web.post("/orders/o-1", params={"amount": 5})
        assert (placed.status_code, len(placed.json()["msg_id"])) == (202, 32)
        async with asyncio.timeout(20):
            while (shown := await web.get("/orders/o-1")).status_code == 404:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert shown.json() == {"billed": 5}

        kerolox_broker.stop()
        assert (await web.post("/orders/o-2", params={"amount": 5})).status_code == 503
        kerolox_broker.start()


def test_none_is_left_out() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == SCRIPTS.keys() | OTHERS
