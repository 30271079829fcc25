"""``kerolox controller`` asks Apache's controllers, of either kind, as it asks ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .controlled import OURS, ControlledSet
from .controllers import DLEDGER, JRAFT, make_controllers
from .jars import Jars
from .ours import OurNameServer

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

NAME = "set-a"


def kerolox(*words: str, fails: bool = False) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "kerolox", "controller", *words, "--json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stderr
    return json.loads(done.stderr if fails else done.stdout)


@pytest.mark.parametrize("kind", [DLEDGER, JRAFT])
def test_our_commands_at_apaches_controllers(peers: Jars, tmp_path: Path, kind: str) -> None:
    if peers.is_4x:
        pytest.skip("RocketMQ 4 has no controller")
    nameserver = OurNameServer(tmp_path / "nameserver")
    nameserver.start()
    controllers = make_controllers(peers, kind, tmp_path)
    group = ControlledSet(controllers, nameserver.address, NAME, tmp_path, peers, (OURS, OURS))
    at = ("-a", controllers.addresses)
    try:
        controllers.start()
        group.start()
        seen = kerolox("status", *at, "--broker", NAME)
        assert seen["leader"] in controllers.addresses.split(";")
        assert [one["leads"] for one in seen["controllers"]].count(True) == 1
        assert seen == kerolox("status", *at, "-n", nameserver.address)
        broker = seen["brokers"][NAME]
        assert (broker["master"], broker["address"]) == (1, group.brokers[0].address)
        assert [(one["id"], one["inSync"], one["alive"]) for one in broker["replicas"]] == [
            (1, True, True), (2, True, True)
        ]  # fmt: skip
        assert {one["maxOffset"] for one in broker["replicas"]} == {None}  # which it does not tell
        assert "answers only for given names" in kerolox("status", *at, fails=True)["error"]
        assert "knows no broker 'nobody'" in kerolox("status", *at, "--broker", "nobody", fails=True)["error"]
        elected = kerolox("elect", *at, "--broker", NAME, "--id", "2")
        assert (elected["master"], elected["address"]) == (2, group.brokers[1].address)
        assert elected["masterEpoch"] > broker["masterEpoch"]
        again = kerolox("elect", *at, "--broker", NAME, "--id", "2", fails=True)
        assert "is the master already" in again["error"]
        gone = kerolox("clean", *at, "--broker", NAME, "--id", "7", "--yes", fails=True)
        assert "has no replica 7; there are: 1, 2" in gone["error"]
    finally:
        group.finish()
        controllers.finish()
        nameserver.finish()
