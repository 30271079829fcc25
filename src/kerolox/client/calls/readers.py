"""Choice of the replica from which a queue is read: the leader or a follower.

A route lists the replicas of a broker name by id; the leader has id 0. With ``"leader"``, a reader follows
the broker's suggestion: the leader, unless the reader is far behind. It reads from a follower while no leader
is reachable. With ``"follower"``, it reads from a follower, and from the leader while there is none. An
unreachable replica, or a follower that rejects reads, is avoided for a growing time if there is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kerolox.client.calls.routes import MASTER
from kerolox.client.errors import BrokerLeaving
from kerolox.errors import ConnectFailed, KeroloxError, OptionError, RequestTimeout

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
# Internal: for senders that append missing messages, and must not rely on a follower that may be behind.
LEADER_ALONE: Final = "leader alone"

AVOID_FIRST_S: Final = 2.0  # after the first failure of a replica; doubled with each further one
AVOID_MAX_S: Final = 30.0
STUCK_FIRST_S: Final = 0.05  # between pulls that return nothing and are not held; doubled each time
STUCK_MAX_S: Final = 1.0


def check_read_from(read_from: object) -> None:
    if read_from not in (LEADER, FOLLOWER):
        raise OptionError("read_from", read_from, f'"{LEADER}" or "{FOLLOWER}"')


class Replica(NamedTuple):
    """Broker of a broker name."""

    id: int
    address: str

    @property
    def leads(self) -> bool:
        return self.id == MASTER


def in_order(
    members: Mapping[int, str], read_from: str, *, suggested: int = MASTER, spread: int = 0
) -> list[Replica]:
    """Return the replicas of a broker name in order of preference.

    ``suggested``: the id that a broker suggested last. ``spread``: any number; it distributes readers over
    several followers.
    """
    ids = sorted(members)
    followers = [id for id in ids if id != MASTER]
    if read_from == LEADER_ALONE:
        ids = [id for id in ids if id == MASTER]
    elif read_from == FOLLOWER and followers:
        turn = spread % len(followers)
        ids = followers[turn:] + followers[:turn] + [id for id in ids if id == MASTER]
    elif suggested != MASTER:  # if it is missing, the next id or any other, as in RocketMQ's clients
        wanted = [id for id in (suggested, suggested + 1) if id in members]
        ids = wanted + [id for id in ids if id not in wanted]
    return [Replica(id, members[id]) for id in ids]


class Reader:
    """Choice of the replica for each read of one broker name, based on the outcome of earlier reads."""

    def __init__(self, read_from: str = LEADER, spread: int = 0) -> None:
        self.read_from = read_from
        self.suggested = MASTER
        self._spread = spread
        self._avoided: dict[str, tuple[float, float]] = {}  # address → end and length, seconds
        self._pause_s = 0.0

    def choose(self, members: Mapping[int, str], now_s: float) -> Replica | None:
        """Return the replica to ask; None if the route has none."""
        if self._avoided:  # a replica that left the route and returned is no longer avoided
            listed = members.values()
            self._avoided = {at: kept for at, kept in self._avoided.items() if at in listed}
        order = in_order(members, self.read_from, suggested=self.suggested, spread=self._spread)
        for replica in order:
            if self._avoided.get(replica.address, (now_s, 0.0))[0] <= now_s:
                return replica
        return order[0] if order else None

    def answered(self, replica: Replica, suggested: int = MASTER, *, stuck: bool = False) -> None:
        """Record a response and the suggested next replica. ``stuck``: it was empty and the pull not held."""
        self._avoided.pop(replica.address, None)
        self.suggested = suggested
        if not stuck:
            self._pause_s = 0.0

    def pause_s(self) -> float:
        """Return the pause before a stuck replica is asked again."""
        self._pause_s = min(STUCK_MAX_S, self._pause_s * 2 or STUCK_FIRST_S)
        return self._pause_s

    def failed(self, replica: Replica, error: KeroloxError, now_s: float) -> None:
        """Record a failed read: no response, a rejection, or missing data.

        A leader is avoided only if it is unreachable or leaving; a follower after any failure, because
        another replica may succeed.
        """
        if replica.leads and not isinstance(error, ConnectFailed | RequestTimeout | BrokerLeaving):
            return
        _, before_s = self._avoided.get(replica.address, (0.0, 0.0))
        avoid_s = min(AVOID_MAX_S, before_s * 2 or AVOID_FIRST_S)
        self._avoided[replica.address] = now_s + avoid_s, avoid_s
        self.suggested = MASTER
