"""Summary of a run of the archive, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field

from kerolox.pipeline.lake.staging import NOTHING, Swept


@dataclass
class TopicCount:
    """Counts of one topic in a run."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    missing: int = 0  # deleted before they were read


@dataclass
class Summary:
    """Counts of the messages and files of a run, with files removed and queues not reached."""

    topics: dict[str, TopicCount] = field(default_factory=dict)
    rounds: int = 0
    seconds: float = 0.0
    runner: str = ""  # name of the runner of the tasks
    files_joined: int = 0
    files_expired: int = 0
    swept: Swept = NOTHING  # removed files of killed runs
    unreachable: list[str] = field(default_factory=list)  # queues that cannot be reached

    @property
    def rows(self) -> int:
        return sum(topic.rows for topic in self.topics.values())

    @property
    def bytes(self) -> int:
        return sum(topic.bytes for topic in self.topics.values())

    @property
    def files(self) -> int:
        return sum(topic.files for topic in self.topics.values())

    @property
    def missing(self) -> int:
        return sum(topic.missing for topic in self.topics.values())
