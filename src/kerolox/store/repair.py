"""Repair of a whole store: the log first, if requested, then queues and index, recorded in a note.

While a repair is interrupted (a kill, a full disk) no broker opens the store, and the same command continues
it. See :mod:`kerolox.store.offline.repair_note`.
"""

from __future__ import annotations

from collections.abc import Callable

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.store.disk.files import Files
from kerolox.store.offline.layout import Layout
from kerolox.store.offline.mend import MendCut, Skip, apply_cut, apply_skip
from kerolox.store.offline.repair_note import RepairNote, clear_interrupted
from kerolox.store.rebuild import Rebuilt, rebuild


class Repair:
    """One repair of one store. The caller holds the lock of the store and decides the steps."""

    def __init__(self, layout: Layout, files: Files | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._layout = layout
        self._files = files or Files()
        self._clock = clock
        self._note = RepairNote(self._files, layout.root)
        self.interrupted = self._note.load()  # options of the unfinished command
        if self.interrupted is not None:
            clear_interrupted(layout, self._files)

    def skip(self, plan: Skip) -> str | None:
        """Replace damaged bytes by filler records; return the path of the saved bytes."""
        self._note.save(f"--skip {plan.offset}")
        return apply_skip(self._layout, plan, self._files)

    def cut(self, plan: MendCut) -> list[str]:
        """Truncate the log; return the paths of the removed data."""
        self._note.save(f"--cut {plan.offset}")
        return apply_cut(self._layout, plan, self._files, self._clock)

    def rebuild(
        self, *, queues: bool, index: bool, progress: Callable[[int, int], None] | None = None
    ) -> Rebuilt:
        """Rebuild queues and index from the log. With both the repair is finished."""
        changed = self._note.load() is not None
        if not changed:
            words = " ".join(word for word, wanted in (("--queues", queues), ("--index", index)) if wanted)
            self._note.save(words)
        whole = queues and (index or self._layout.index_enabled is False)
        assert whole or not changed, "the log was changed: queues and index have to fit it"
        made = rebuild(
            self._layout,
            queues=queues,
            index=index,
            progress=progress,
            files=self._files,
            clock=self._clock,
        )
        self._note.remove()
        return made
