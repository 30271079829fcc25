"""System calls that fail in a process, on some of its files: a preloaded library, steered through a page."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path

from kerolox.store.errors import Operation
from kerolox.store.failures import Kind

from .places import Fault

SOURCE = Path(__file__).with_suffix(".c")
_PARTS, _PART_BYTES, _ROOT_BYTES = 4, 64, 256
_BITS = {
    Operation.OPEN: 1, Operation.CREATE: 2, Operation.READ: 4, Operation.WRITE: 8,
    Operation.FLUSH: 16, Operation.REMOVE: 32, Operation.RENAME: 64, Operation.TRUNCATE: 128,
}  # fmt: skip
# Parts of the paths of a kind of file, as kind_of tells them.
PARTS = {
    Kind.LOG: ("/commitlog/",),
    Kind.QUEUE: ("/consumequeue/",),
    Kind.INDEX: ("/index/",),
    Kind.CHECKPOINT: ("/checkpoint", "/kerolox.marks"),
    Kind.SUMS: ("/kerolox.sums",),
    Kind.TIMER: ("/timerlog/", "/timerwheel", "/timercheck", "/kerolox.timer"),
    Kind.NOTE: ("/kerolox.deleted", "/kerolox.cut"),
    Kind.TABLE: ("/config/",),
}


class _Page(ctypes.Structure):
    """The layout of ``struct page`` in failing_calls.c."""

    _fields_ = (
        ("error", ctypes.c_int),
        ("operations", ctypes.c_uint),
        ("hits", ctypes.c_ulong),
        ("root", ctypes.c_char * _ROOT_BYTES),
        ("parts", (ctypes.c_char * _PART_BYTES) * _PARTS),
        ("not_with", ctypes.c_char * _PART_BYTES),
    )


def compiler() -> str | None:
    return shutil.which("cc")


class FailingCalls:
    """The library for one process, with the part of ``FaultyFiles`` that a scene uses."""

    def __init__(self, folder: Path, root: Path) -> None:
        """``root``: no file elsewhere ever fails."""
        library, control = folder / "failing_calls.so", folder / "failing_calls.page"
        cc = compiler()
        assert cc is not None, "there is no C compiler (cc)"
        subprocess.run(
            [cc, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True
        )
        control.write_bytes(bytes(ctypes.sizeof(_Page)))
        self.environment = {"LD_PRELOAD": str(library), "KEROLOX_FAILING_CALLS": str(control)}
        with open(control, "r+b") as file:
            self._page = _Page.from_buffer(mmap.mmap(file.fileno(), 0))
        self._page.root = os.fsencode(root) + b"/"
        self._fault: Fault | None = None

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        page = self._page
        page.error = 0
        self._fault = fault
        if fault is not None:
            parts = PARTS[fault.kind]
            for number in range(_PARTS):
                page.parts[number].value = parts[number].encode() if number < len(parts) else b""
            page.not_with = b"" if fault.kind is Kind.TIMER else b"/timercheck"
            page.operations = _BITS[fault.operation]
            page.error = fault.number

    @property
    def fault_hits(self) -> int:
        return int(self._page.hits)
