"""RocketMQ's rules as they were measured on its ReplicasInfoManager (5.5.0): two tables, changed in place.

Only what it decides: codes and tables. Made apart from ours, to be held against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OK = 0
FENCED_MASTER_EPOCH = 2000
FENCED_SET_EPOCH = 2001
INVALID_MASTER = 2002
INVALID_REPLICAS = 2003
MASTER_NOT_AVAILABLE = 2004
NOT_ALIVE = 2006
NO_METADATA = 2008
INVALID_CLEAN = 2009
NEEDS_REGISTERING = 2010
MASTER_STILL_EXISTS = 2011
ELECT_FAILED = 2012
ALTER_FAILED = 2013
ID_INVALID = 2014


@dataclass
class ReplicaRow:
    next_id: int = 1
    codes: dict[int, str] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)


@dataclass
class SyncRow:
    master_epoch: int = 0
    set_epoch: int = 0
    in_sync: set[int] = field(default_factory=set)
    master: int | None = None


# id → (epoch, max offset, priority) of the last heartbeat
Alive = dict[int, tuple[int, int, int]]


class ApacheController:
    """One broker name."""

    def __init__(self) -> None:
        self.replicas: ReplicaRow | None = None
        self.sync: SyncRow | None = None

    def next_id(self) -> int:
        return 1 if self.replicas is None else self.replicas.next_id

    def take_id(self, id: int, code: str) -> int:
        row = self.replicas
        if row is None:
            if id != 1:
                return ID_INVALID
        elif id in row.codes and row.codes[id] != code:
            return ID_INVALID
        if self.replicas is None or self.sync is None:
            self.replicas, self.sync = ReplicaRow(), SyncRow()
        if id not in self.replicas.codes:
            self.replicas.codes[id] = code
            self.replicas.addresses[id] = code.split(";")[0]
            self.replicas.next_id += 1
        return OK

    def register(self, id: int, address: str) -> int:
        if self.replicas is None or self.sync is None or id not in self.replicas.codes:
            return NEEDS_REGISTERING
        self.replicas.addresses[id] = address
        return OK

    def elect(self, id: int, wanted: bool, alive: Alive, unclean: bool) -> int:
        if self.replicas is None or self.sync is None:
            return NEEDS_REGISTERING
        sync = self.sync
        if sync.master_epoch == 0 and id != -1:
            new: int | None = id
        else:
            preferred = id if wanted else None
            new = self._policy(sync.in_sync, alive, preferred)
            if new is None and unclean:
                new = self._policy(set(self.replicas.codes), alive, preferred)
        if new is not None and new == sync.master:
            return MASTER_STILL_EXISTS
        if new is not None:
            sync.master, sync.in_sync = new, {new}
            sync.master_epoch += 1
            sync.set_epoch += 1
            return OK
        if id == -1:
            sync.master = None
            sync.master_epoch += 1
            return MASTER_NOT_AVAILABLE
        return ELECT_FAILED

    def _policy(self, candidates: set[int], alive: Alive, preferred: int | None) -> int | None:
        assert self.sync is not None
        living = {id for id in candidates if id in alive}
        if not living:
            return None
        old = self.sync.master
        if old in living and (preferred is None or preferred == old):
            return old
        if preferred is not None:
            return preferred if preferred in living else None
        return sorted(living, key=lambda id: (-alive[id][0], -alive[id][1], alive[id][2], id))[0]

    def alter(self, caller: int, epoch: int, new: set[int], set_epoch: int, alive: Alive) -> int:
        if self.replicas is None or self.sync is None:
            return ALTER_FAILED
        sync = self.sync
        if new == sync.in_sync:
            return ALTER_FAILED
        if caller != sync.master:
            return INVALID_MASTER
        if epoch != sync.master_epoch:
            return FENCED_MASTER_EPOCH
        if set_epoch != sync.set_epoch:
            return FENCED_SET_EPOCH
        for id in sorted(new):
            if id not in self.replicas.codes:
                return INVALID_REPLICAS
            if id not in alive:
                return NOT_ALIVE
        if sync.master not in new:
            return ALTER_FAILED
        sync.in_sync = set(new)
        sync.set_epoch += 1
        return OK

    def clean(self, ids: set[int] | None, even_living: bool, alive: Alive) -> int:
        if not even_living:
            if ids is None and self.sync is not None and self.sync.master is not None:
                return INVALID_CLEAN
            if ids is not None and ids & alive.keys():
                return INVALID_CLEAN
        if self.replicas is None or self.sync is None:
            return INVALID_CLEAN
        if ids is None or even_living:
            self.replicas = self.sync = None
            return OK
        for id in ids:
            self.replicas.codes.pop(id, None)
            self.replicas.addresses.pop(id, None)
        self.sync.in_sync -= ids
        if not self.replicas.codes:
            self.replicas = None
        if not self.sync.in_sync:
            self.sync = None
        return OK
