"""A leader and its follower as processes: ours or Apache's, with the same settings."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.peers.jars import Jars

from bench.broker_peers import QUEUES, BenchBroker
from bench.line import Line, frame
from kerolox.protocol.bodies.stats import HaStatus
from kerolox.protocol.codes import RequestCode

IN_STEP_TIMEOUT_S = 60.0
LOOK_S = 0.005
# Both sides of a connection give each other up after that long; they hold still while others are measured.
SILENCE = {"haHousekeepingInterval": 600_000}


class Pair:
    """Two brokers of one kind. The follower can be away, and come back with what it had then."""

    def __init__(self, kind: str, jars: Jars | None, properties: Mapping[str, object]) -> None:
        self.kind = kind
        self.leader = BenchBroker(kind, jars, {**SILENCE, **properties, "brokerId": 0})
        try:
            self.follower = BenchBroker(
                kind,
                jars,
                {**SILENCE, "brokerRole": "SLAVE", "brokerId": 1},
                nameserver=self.leader.nameserver,
            )
        except BaseException:
            self.leader.close()
            raise
        self._line = Line(self.leader.port)
        self._kept = self.follower.home / "kept"
        self.kept_end = 0  # of the log the follower is set back to

    @property
    def pids(self) -> list[int]:
        """Of the processes that run."""
        return self.leader.pids + self.follower.pids

    def close(self) -> None:
        self._line.close()
        self.follower.close()
        self.leader.close()

    # --- how far they are -----------------------------------------------------------------------------

    def ends(self) -> tuple[int, int | None]:
        """Where the leader's log ends, and what its follower said last: -1 while it has said nothing, None
        while it is not connected."""
        asked = frame(RequestCode.GET_BROKER_HA_STATUS, {})
        try:
            _, body = self._line.ask(asked)
        except ConnectionError:  # nobody asked for two minutes, while others were measured
            self._line.close()
            self._line = Line(self.leader.port)
            _, body = self._line.ask(asked)
        status = HaStatus.decode(body)
        acked = [one.slave_ack_offset for one in status.ha_connection_info]
        return status.master_commit_log_max_offset, max(acked, default=None)

    def wait_in_step(self, timeout_s: float = IN_STEP_TIMEOUT_S) -> None:
        """Until the follower has all that the leader has."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            end, acked = self.ends()
            if acked == end:
                return
            if time.monotonic() > deadline_s or self.follower.process.poll() is not None:
                raise RuntimeError(
                    f"{self.kind}'s follower has {acked} of {end} after {timeout_s:g} s:\n"
                    f"{self.follower.tail()}"
                )
            time.sleep(LOOK_S)

    def queue_ends(self, broker: BenchBroker, topic: str) -> list[int]:
        """Where the queues of a topic end: up to there it can be read."""
        line = Line(broker.port)
        try:
            answers = [
                line.ask(frame(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)}))[0]
                for queue_id in range(QUEUES)
            ]
        finally:
            line.close()
        return [int(answer["extFields"]["offset"]) for answer in answers]  # type: ignore[index]

    # --- the follower away ----------------------------------------------------------------------------

    def keep_follower(self) -> None:
        """End the follower and keep its store as it is now."""
        self.wait_in_step()
        self.kept_end = self.ends()[0]
        self.follower.stop()
        _copy(self.follower.home / "store", self._kept)

    def set_follower_back(self) -> None:
        """End the follower, if it runs, and give it the store that was kept."""
        self.follower.stop()
        shutil.rmtree(self.follower.home / "store")
        _copy(self._kept, self.follower.home / "store")


def _copy(source: Path, target: Path) -> None:
    # The files of a log are mostly holes, which are to stay such.
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
