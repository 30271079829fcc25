"""Why a leader turns a follower away."""

from __future__ import annotations

from enum import Enum


class Why(Enum):
    """One word for metrics and logs; the text beside it has the offsets."""

    NOT_LEADING = "not_leading"
    NOT_KNOWN = "not_known"  # it does not prove that it may copy
    TOO_SLOW = "too_slow"  # to prove it
    TOO_MANY = "too_many"
    SILENT = "silent"
    AHEAD = "ahead"  # its log ends behind the leader's
    TOO_OLD = "too_old"  # the leader has deleted what it needs next
    UNSENT = "unsent"  # it says it has what it was not sent
    REPLACED = "replaced"  # it has a newer connection
    OTHER_ID = "other_id"  # it is not who it should be
    NOT_A_REPORT = "not_a_report"
    UNREADABLE = "unreadable"  # the leader cannot read its own log
