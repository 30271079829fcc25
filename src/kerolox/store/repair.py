"""Repair a store as a whole: the log first, if asked, then queues and index, with a note around it.

Interrupted at any place (a kill, a full disk) the store is not opened by a broker, and the same command goes
on. See :mod:`kerolox.store.offline.repair_note`.
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
    """One repair of one store. The caller holds the lock of the store, and plans what to do."""

    def __init__(self, layout: Layout, files: Files | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._layout = layout
        self._files = files or Files()
        self._clock = clock
        self._note = RepairNote(self._files, layout.root)
        self.interrupted = self._note.load()  # options of the command that is unfinished
        if self.interrupted is not None:
            clear_interrupted(layout, self._files)

    def skip(self, plan: Skip) -> str | None:
        """Step over damage; where the damaged bytes were saved."""
        self._note.save(f"--skip {plan.offset}")
        return apply_skip(self._layout, plan, self._files)

    def cut(self, plan: MendCut) -> list[str]:
        """End the log; where the rest was put."""
        self._note.save(f"--cut {plan.offset}")
        return apply_cut(self._layout, plan, self._files, self._clock)

    def rebuild(
        self, *, queues: bool, index: bool, progress: Callable[[int, int], None] | None = None
    ) -> Rebuilt:
        """Make queues and index again from the log. With both the repair is finished."""
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
