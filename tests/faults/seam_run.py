"""The matrix through the file seam: jobs for worker processes, each a scene that goes through many places."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import traceback
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from kerolox.store.failures import Kind
from kerolox.store.options import FlushMode

from .places import Place, places
from .scene import KINDS, Scene, scene

LEFT_OUT = {
    "lock, at work": "lock and abort are used when a store opens and closes: they fail at starts",
}


@dataclass(frozen=True)
class Job:
    """Places of one kind of file, while clients work or while the broker starts."""

    kind: Kind
    flush: FlushMode
    starts: bool = False
    ledger: bool = False  # a DLedger group of one

    def __str__(self) -> str:
        when = "starts" if self.starts else "work"
        return f"{self.kind.value}, {self.flush.value}, {when}{', DLedger' if self.ledger else ''}"


@dataclass(frozen=True)
class Outcome:
    """One place of a job: how many operations failed, and what was wrong."""

    job: Job
    place: Place
    hits: int
    wrong: list[str]


def jobs() -> list[Job]:
    found = []
    for flush in FlushMode:
        for starts in (False, True):
            found += [Job(kind, flush, starts) for kind in KINDS]
            found += [Job(kind, flush, starts, ledger=True) for kind in (Kind.LOG, Kind.LEDGER_INDEX)]
        found.append(Job(Kind.LOCK, flush, starts=True))
    return found


def run_job(job: Job, names: set[str]) -> list[Outcome]:
    """Go through the places of a job that have these names."""
    log = logging.getLogger("kerolox")
    log.setLevel(logging.WARNING)  # the scene counts them
    log.propagate = False
    waiting = [place for place in places(job.kind) if place.name in names]
    with tempfile.TemporaryDirectory(prefix="kerolox-faults-") as folder:
        return asyncio.run(_go_through(Path(folder), job, waiting))


async def _go_through(folder: Path, job: Job, waiting: list[Place]) -> list[Outcome]:
    """After a place that went wrong the next ones get a new scene."""
    done: list[Outcome] = []
    while waiting:  # none: no scene is set up
        async with AsyncExitStack() as stack:
            home = folder / str(len(waiting))
            ours = await stack.enter_async_context(scene(home, flush=job.flush, ledger=job.ledger))
            spoiled = False
            while waiting and not spoiled:
                place = waiting.pop(0)
                wrong = await _run(ours, job, place)
                done.append(Outcome(job, place, ours.hits, wrong))
                spoiled = bool(wrong)
            if not spoiled and (wrong := await ours.same_logs()):
                done[-1].wrong.extend(wrong)
    return done


async def _run(ours: Scene, job: Job, place: Place) -> list[str]:
    try:
        return await (ours.run_start(place) if job.starts else ours.run(place))
    except Exception:
        return [f"{place.name}: {traceback.format_exc()}"]
    finally:
        ours.files.fault = None
