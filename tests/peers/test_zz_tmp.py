"""mqadmin's commands for controllers print the same whether the controller is ours or Apache's.

The same commands are given to both, each over two brokers of its own; what is printed is compared word for
word, with addresses and folders under common names, and refusals by their codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .controlled import APACHE, CLUSTER, ControlledSet
from .controlled import OURS as OUR_BROKER
from .controllers import DLEDGER, OURS, make_controllers
from .driver import JavaDriver, JavaError
from .jars import Jars
from .ours import OurNameServer
from .replicas import Replica

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

NAME = "set-a"
REFUSED = re.compile(r"CODE: (\d+)")
ROW = re.compile(r"^(\S+) +=  (.*)$", re.MULTILINE)
# Ours shows its figures to this machine alone unless it is told otherwise.
OWN = {"controllerStorePath", "configStorePath", "metricsPromExporterHost"}
# Fails at the answer of Apache's own controller: its keys are bare numbers, "not support unquoted name".
ONLY_OURS_PRINTS = f"electMaster -a K -b 2 -bn {NAME} -c {CLUSTER}"

# Ours says that it is not registered; Apache's that nobody could be elected.
NOBODY_KNOWN = f"electMaster -a K -b 7 -bn {NAME} -c {CLUSTER}"

OUR_BROKERS = "our brokers"
SESSIONS = ((OURS, OURS, APACHE), (DLEDGER, DLEDGER, APACHE), (OUR_BROKERS, OURS, OUR_BROKER))


class Session:
    """A controller, two brokers, and what mqadmin printed about them."""

    def __init__(self, kind: str, brokers: str, home: Path, jars: Jars, driver: JavaDriver) -> None:
        self.printed: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self._driver = driver
        self._nameserver = OurNameServer(home / "nameserver")
        self._nameserver.start()
        self._controllers = make_controllers(jars, kind, home)
        self._group = ControlledSet(
            self._controllers, self._nameserver.address, NAME, home, jars, (brokers, brokers)
        )
        self._names = {
            self._controllers.addresses: "K",
            self._nameserver.address: "N",
            **{broker.address: f"B{at}" for at, broker in enumerate(self._group.brokers, start=1)},
        }

    def finish(self) -> None:
        self._group.finish()
        self._controllers.finish()
        self._nameserver.finish()

    def give(self, command: str, note: str = "") -> str:
        """Give a command, with K for the controller and N for the name server."""
        words = [
            next((address for address, name in self._names.items() if name == word), word)
            for word in command.split()
        ]
        try:
            printed = self._driver.mqadmin_full(*words)
            text = printed["out"] + printed.get("err", "")
        except JavaError as error:
            codes = REFUSED.findall(error.stack)
            text = f"refused with {codes[0] if codes else error.stack}"
        for address, name in self._names.items():
            text = text.replace(address, name)
        self.printed[f"{command}{note}"] = in_order(text)
        return text

    def tell(self) -> None:
        self._controllers.start()
        self._group.start()
        one, _ = self._group.brokers
        leader = Replica(self._group.master)
        leader.create_topic("orders", "")
        assert leader.send("orders", b"so that there is something in the first epoch") == 0
        self._group.wait_same_end()
        self.give("getControllerMetaData -a K")
        self.give(f"getSyncStateSet -a K -b {NAME}")
        self.give("getSyncStateSet -a K -b nobody")
        self.give(f"getSyncStateSet -a K -n N -c {CLUSTER}")
        self.give(f"getBrokerEpoch -n N -b {NAME}")
        self.give(f"getBrokerEpoch -n N -c {CLUSTER}")
        self.give("updateControllerConfig -a K -k scanInactiveMasterInterval -v 2000")
        self.give("updateControllerConfig -a K -k configStorePath -v /elsewhere")
        self.settings = dict(ROW.findall(self.give("getControllerConfig -a K")))
        self.give(f"electMaster -a K -b 1 -bn {NAME} -c {CLUSTER}")
        self.give(ONLY_OURS_PRINTS)
        self._group.wait_in_sync()
        self.give(NOBODY_KNOWN)
        self.give(f"electMaster -a K -b 1 -bn nobody -c {CLUSTER}")
        self.give(f"getSyncStateSet -a K -b {NAME}", " after the election")
        self.give(f"cleanBrokerMetadata -a K -bn {NAME} -b 1 -c {CLUSTER}")
        self.give(f"cleanBrokerMetadata -a K -bn {NAME} -c {CLUSTER}")
        self.give(f"cleanBrokerMetadata -a K -bn {NAME} -b x -c {CLUSTER}")
        self.give(f"cleanBrokerMetadata -a K -bn nobody -b 1 -c {CLUSTER}")
        one.kill()
        self._group.wait(lambda state: len(state.in_sync_replicas) == 1)
        self._group.wait(lambda state: not any(each.alive for each in state.not_in_sync_replicas))
        self.give(f"getSyncStateSet -a K -b {NAME}", " with one of them gone")
        self.give(f"cleanBrokerMetadata -a K -bn {NAME} -b 1 -c {CLUSTER}", " with it gone")
        self.give(f"getSyncStateSet -a K -b {NAME}", " after it was cleaned")
        self.give(f"cleanBrokerMetadata -a K -bn {NAME} -l")
        self.give(f"getSyncStateSet -a K -b {NAME}", " after all was cleaned")


def in_order(text: str) -> str:
    """Brokers come in any order; and Apache's write messages of their own, so that logs end elsewhere."""
    parts = re.split(r"\n(?=#clusterName)", re.sub(r"endOffset=\d+", "endOffset=E", text))
    return "\n".join(sorted(parts))


@pytest.fixture(scope="module")
def sessions(
    peers: Jars, java_driver: JavaDriver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Session]]:
    if peers.is_4x:
        pytest.skip("RocketMQ 4 has no controller")
    found: dict[str, Session] = {}
    try:
        for name, kind, brokers in SESSIONS:
            made = found[name] = Session(kind, brokers, tmp_path_factory.mktemp(name), peers, java_driver)
            made.tell()
            made.finish()
        yield found
    finally:
        for session in found.values():
            session.finish()


def test_all_commands_print_the_same(sessions: dict[str, Session]) -> None:
    ours, apaches = sessions[OURS].printed, sessions[DLEDGER].printed
    assert list(ours) == list(apaches)
    different = {command for command, text in ours.items() if text != apaches[command]}
    assert different == {"getControllerConfig -a K", ONLY_OURS_PRINTS, NOBODY_KNOWN}
    assert (ours[NOBODY_KNOWN], apaches[NOBODY_KNOWN]) == ("refused with 2010", "refused with 2012")
    assert "unquoted" in apaches[ONLY_OURS_PRINTS]
    assert f"#BrokerName\t{NAME}\n#BrokerMasterAddr\tB2\n#MasterEpoch\t2\n" in ours[ONLY_OURS_PRINTS]
    # They are not the same because nothing was printed.
    assert sum("#SyncStateSetNums\t2\n" in text for text in ours.values()) == 3
    assert sum(text.startswith("refused with ") for text in ours.values()) == 8
    assert sum(" success!" in text for text in ours.values()) == 3


def test_the_same_is_printed_of_our_brokers(sessions: dict[str, Session]) -> None:
    ours, apaches = sessions[OUR_BROKERS].printed, sessions[OURS].printed
    assert list(ours) == list(apaches)
    of_the_controller = {"getControllerConfig -a K"}  # which has places of its own
    other = {command: text for command, text in ours.items() if text != apaches[command]}
    print("OTHER", {c: (x, apaches[c]) for c, x in other.items() if "clean" in c})
    assert 0
    assert "#Epoch: EpochEntry{epoch=1, startOffset=0, endOffset=E}" in ours[f"getBrokerEpoch -n N -b {NAME}"]


def test_settings_that_both_have_are_the_same(sessions: dict[str, Session]) -> None:
    ours, apaches = sessions[OURS].settings, sessions[DLEDGER].settings
    common = ours.keys() & apaches.keys() - OWN
    assert {name: ours[name] for name in common} == {name: apaches[name] for name in common}
    assert common >= {
        "controllerDLegerGroup", "controllerDLegerPeers", "controllerDLegerSelfId", "controllerType",
        "enableElectUncleanMaster", "notifyBrokerRoleChanged", "scanNotActiveBrokerInterval",
    }  # fmt: skip
    assert ours["scanInactiveMasterInterval"] == apaches["scanInactiveMasterInterval"] == "2000"
