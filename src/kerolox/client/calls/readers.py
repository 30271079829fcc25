"""From which broker of a name a queue is read: the one that leads, or one that follows.

A route tells the members of a broker name by their ids; the leader is 0. By ``"leader"`` a reader goes where
brokers send it, which is the leader unless it is far behind, and to a follower while there is no leader that
can be reached. By ``"follower"`` it goes to a follower, and to the leader while there is none. A member that
cannot be reached, or a follower that does not let itself be read, is left alone for a growing while, if there
is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kerolox.client.calls.routes import MASTER
from kerolox.client.errors import BrokerLeaving
from kerolox.errors import ConnectFailed, KeroloxError, OptionError, RequestTimeout

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
# Not to be chosen by users: for who sends what is not there yet, and must not take a copy's word for that.
LEADER_ALONE: Final = "leader alone"

AVOID_FIRST_S: Final = 2.0  # a member that failed; doubled while it does
AVOID_MAX_S: Final = 30.0
STUCK_FIRST_S: Final = 0.05  # between pulls that find nothing, and are not held; doubled
STUCK_MAX_S: Final = 1.0


def check_read_from(read_from: object) -> None:
    if read_from not in (LEADER, FOLLOWER):
        raise OptionError("read_from", read_from, f'"{LEADER}" or "{FOLLOWER}"')


class Replica(NamedTuple):
    """One broker of a broker name."""

    id: int
    address: str

    @property
    def leads(self) -> bool:
        return self.id == MASTER


def in_order(
    members: Mapping[int, str], read_from: str, *, suggested: int = MASTER, spread: int = 0
) -> list[Replica]:
    """The members of a broker name, the one to ask first. ``suggested``: the id a broker named last.
    ``spread``: any number; readers with others prefer others of several followers."""
    ids = sorted(members)
    followers = [id for id in ids if id != MASTER]
    if read_from == LEADER_ALONE:
        ids = [id for id in ids if id == MASTER]
    elif read_from == FOLLOWER and followers:
        turn = spread % len(followers)
        ids = followers[turn:] + followers[:turn] + [id for id in ids if id == MASTER]
    elif suggested != MASTER:  # if it is gone, as RocketMQ's clients have it: the next, or any
        wanted = [id for id in (suggested, suggested + 1) if id in members]
        ids = wanted + [id for id in ids if id not in wanted]
    return [Replica(id, members[id]) for id in ids]


class Reader:
    """Reads queues of one broker name: chooses whom to ask, by what came of the questions before."""

    def __init__(self, read_from: str = LEADER, spread: int = 0) -> None:
        self.read_from = read_from
        self.suggested = MASTER
        self._spread = spread
        self._avoided: dict[str, tuple[float, float]] = {}  # address → until when, and for how long
        self._pause_s = 0.0

    def choose(self, members: Mapping[int, str], now_s: float) -> Replica | None:
        """Whom to ask; None when there is nobody."""
        if self._avoided:  # one that was gone from the route, and is back, is there again
            listed = members.values()
            self._avoided = {at: kept for at, kept in self._avoided.items() if at in listed}
        order = in_order(members, self.read_from, suggested=self.suggested, spread=self._spread)
        for replica in order:
            if self._avoided.get(replica.address, (now_s, 0.0))[0] <= now_s:
                return replica
        return order[0] if order else None

    def answered(self, replica: Replica, suggested: int = MASTER, *, stuck: bool = False) -> None:
        """It gave an answer, and names who to ask next. ``stuck``: it has nothing, and did not wait."""
        self._avoided.pop(replica.address, None)
        self.suggested = suggested
        if not stuck:
            self._pause_s = 0.0

    def pause_s(self) -> float:
        """How long to wait when the one that is stuck is to be asked again."""
        self._pause_s = min(STUCK_MAX_S, self._pause_s * 2 or STUCK_FIRST_S)
        return self._pause_s

    def failed(self, replica: Replica, error: KeroloxError, now_s: float) -> None:
        """It did not answer, or refused, or lacks what was asked for. What a leader refuses is refused; what
        a follower does not give another may."""
        if replica.leads and not isinstance(error, ConnectFailed | RequestTimeout | BrokerLeaving):
            return
        _, before_s = self._avoided.get(replica.address, (0.0, 0.0))
        avoid_s = min(AVOID_MAX_S, before_s * 2 or AVOID_FIRST_S)
        self._avoided[replica.address] = now_s + avoid_s, avoid_s
        self.suggested = MASTER
