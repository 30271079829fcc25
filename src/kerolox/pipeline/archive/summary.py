"""What a run of the archive has done, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field

from kerolox.pipeline.archive.staging import NOTHING, Swept


@dataclass
class TopicCount:
    """How many messages of one topic a run archived."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    missing: int = 0  # gone before they were read


@dataclass
class Summary:
    """How many messages and files a run archived, and what it found on the way."""

    topics: dict[str, TopicCount] = field(default_factory=dict)
    rounds: int = 0
    seconds: float = 0.0
    files_joined: int = 0
    files_expired: int = 0
    swept: Swept = NOTHING  # of killed runs
    unreachable: list[str] = field(default_factory=list)  # queues whose broker is not there

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
