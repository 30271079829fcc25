"""Main module of a process that runs tasks for :class:`kerolox.pipeline.runner.InProcesses`.

It reads pickled tasks from stdin and writes pickled results to stdout. When stdin ends, because the other
process has ended, this one ends at once, so that no task of a killed job goes on beside the next run of it.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, BinaryIO

from kerolox.errors import KeroloxError

Task = tuple[Callable[[Any], Any], Any]


def _read_tasks(stdin: BinaryIO, tasks: SimpleQueue[Task]) -> None:
    while True:
        try:
            tasks.put(pickle.load(stdin))
        except EOFError:
            os._exit(0)
        except BaseException:  # a task that cannot be read
            traceback.print_exc()
            os._exit(1)


def _answer(work: Callable[[Any], Any], item: Any) -> bytes:
    """Run a task and return its pickled result, or the cause of its failure."""
    try:
        return pickle.dumps((work(item), ""))
    except (KeroloxError, OSError) as error:
        failure = f"{type(error).__name__}: {error}"
    except Exception as error:
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    return pickle.dumps((None, failure))


def main() -> None:
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of tasks does not disturb the results
    tasks: SimpleQueue[Task] = SimpleQueue()
    threading.Thread(target=_read_tasks, args=(sys.stdin.buffer, tasks), daemon=True).start()
    while True:
        results.write(_answer(*tasks.get()))
        results.flush()


if __name__ == "__main__":
    main()
