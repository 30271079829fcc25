"""Handling of RocketMQ's frames by the broker: sends that arrive in runs."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.figures.room import Figures
from kerolox.broker.later.room import Scheduling
from kerolox.broker.remoting.send_runs import SendRuns
from kerolox.broker.write.room import WritePath


class Remoting:
    def __init__(
        self,
        base: Base,
        figures: Figures,
        path: WritePath,
        later: Scheduling,
    ) -> None:
        self.send_runs = SendRuns(base, path, later.delays, later.timer_sends, figures.meters)
