"""``make jepsen``: brokers under controllers and hundreds of faults, and a file that says what came of it."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.peers.driver import JavaDriver
from tests.peers.jars import get_jars
from tests.rig.loads import JavaLoad, Load

from .cluster import BY_ETCD, EMBEDDED, NAMESERVER, PLACES, Violation
from .faults import FAULTS, KINDS
from .history import ClusterHistory
from .nodes import NAMESERVER_PORT
from .stage import our_load, standing
from .story import Tally, live, plan
from .wires import Wires


def main() -> None:
    known = [*(fault.name for fault in FAULTS), *KINDS]
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen", description=__doc__)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--life", type=int, action="append", help="only this cluster; may be repeated")
    parser.add_argument("--only", action="append", choices=known, default=[], help="may be repeated")
    parser.add_argument("--carrier", choices=(BY_ETCD, EMBEDDED), help="only with this one")
    parser.add_argument(
        "--java", type=int, default=0, help="so many of the faults while Java's client sends too"
    )
    parser.add_argument("--go-on", action="store_true", help="tell a violation, and go on")
    parser.add_argument("--steps", action="store_true", help="say what is done, with times")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL, format="%(asctime)s %(message)s")
    if args.steps:
        logging.getLogger("tests.jepsen").setLevel(logging.INFO)
    began_s = time.monotonic()
    tally = Tally()
    folder = Path(tempfile.mkdtemp(prefix="kerolox-jepsen-"))
    violations = 0
    with ExitStack() as stack:
        wires = stack.enter_context(Wires(PLACES))
        ground = stack.enter_context(standing(wires, folder))
        nameserver = f"{wires.ips[NAMESERVER]}:{NAMESERVER_PORT}"
        driver: JavaDriver | None = None
        if args.java:
            driver = JavaDriver(get_jars(), folder / "driver")
            driver.start()
            stack.callback(driver.finish)

        def make_loads(topic: str, history: ClusterHistory) -> Sequence[Load]:
            loads = our_load(ground, nameserver, topic, history, args.seed)
            if driver is not None and tally.total < args.java:
                return [*loads, JavaLoad(driver, nameserver, topic, history)]
            return loads

        carriers = (args.carrier,) if args.carrier else (BY_ETCD, EMBEDDED)
        for life in plan(args.seed, args.faults, args.only, carriers):
            if args.life is None or life.number in args.life:
                names = ", ".join(" + ".join(fault.name for fault in turn) for turn in life.turns)
                progress(
                    f"cluster {life.number}, {life.carrier}{', powered' if life.powered else ''}: {names}"
                )
                try:
                    live(life, folder / f"cluster-{life.number}", ground, make_loads, tally)
                except Violation as error:
                    violations += 1
                    progress(f"VIOLATION: {error}")
                    if not args.go_on:
                        break
                progress(f"{tally.total} faults of {args.faults} in {time.monotonic() - began_s:.0f} s")
    if violations:
        progress(f"{violations} violations; the files are in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)
    result = {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {"python": platform.python_version(), "system": platform.platform(terse=True)},
        "seconds": round(time.monotonic() - began_s),
        "seed": args.seed,
        "while_java_sends_too": min(args.java, tally.total),
        **tally.dump(),
    }
    text = json.dumps(result, indent=2) + "\n"
    progress(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
