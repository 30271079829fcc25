"""Reasons for which a leader rejects a follower."""

from __future__ import annotations

from enum import Enum


class Why(Enum):
    """One word per reason for metrics and logs; the text beside it has the offsets."""

    NOT_LEADING = "not_leading"
    NOT_KNOWN = "not_known"  # the follower did not authenticate
    TOO_SLOW = "too_slow"  # to authenticate
    TOO_MANY = "too_many"
    SILENT = "silent"
    AHEAD = "ahead"  # its log end is behind the leader's end
    TOO_OLD = "too_old"  # the leader has deleted the part it needs next
    UNSENT = "unsent"  # it reports bytes that were not sent to it
    REPLACED = "replaced"  # it has a newer connection
    OTHER_ID = "other_id"  # wrong or duplicate identity
    NOT_A_REPORT = "not_a_report"
    UNREADABLE = "unreadable"  # the leader cannot read its own log
