"""How far the log is committed: what a majority has, and will not lose by whoever leads next.

Apache's 0.3 commits by counting copies of any entry. An entry of an earlier term can be on a majority and
still be overwritten by a leader whose last entry is of a later term (Raft's figure 8, dledger#4). A leader of
ours counts copies of entries of its own term only; those before come with them. Nothing on the wire tells the
difference: followers hear of a commit a little later, and of no wrong one.
"""

from __future__ import annotations

from collections.abc import Collection


def committed(watermarks: Collection[int], first_own: int, known: int) -> int:
    """The last index that is committed. ``watermarks``: of each member, the leader among them, the last index
    it has; ``first_own``: of the first entry of the leader's term; ``known``: what was committed before."""
    on_majority = sorted(watermarks, reverse=True)[len(watermarks) // 2]
    return max(on_majority, known) if on_majority >= first_own else known
