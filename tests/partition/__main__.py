"""``make partition``: a replicated pair under hundreds of faults, and a file that says what came of it."""

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
from tests.rig.history import History
from tests.rig.loads import JavaLoad, Load, OurLoad
from tests.rig.nursery import Nursery
from tests.rig.servers import BROKER

from .faults import FAULTS
from .hub import Hub
from .pair import Violation
from .story import Stage, Tally, live, plan
from .wires import Wires


def main() -> None:
    known = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(prog="python -m tests.partition", description=__doc__)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--mixed", type=int, default=0, help="faults of pairs with a broker of Apache's, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--life", type=int, action="append", help="only this pair; may be repeated")
    parser.add_argument("--only", action="append", choices=known, default=[], help="may be repeated")
    parser.add_argument("--clients", default="ours,java", help="who sends: ours, java, or both")
    parser.add_argument("--steps", action="store_true", help="say what is done, with times")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL, format="%(asctime)s %(message)s")
    if args.steps:
        logging.getLogger("tests.partition").setLevel(logging.INFO)
    began_s = time.monotonic()
    tally = Tally()
    clients = args.clients.split(",")
    folder = Path(tempfile.mkdtemp(prefix="kerolox-partition-"))
    with ExitStack() as stack:
        wires = stack.enter_context(Wires())
        hub = stack.enter_context(Hub(wires.hub_ip, folder / "nameserver"))
        nursery = stack.enter_context(Nursery(BROKER))
        driver: JavaDriver | None = None
        if "java" in clients:
            driver = JavaDriver(get_jars(), folder / "driver")
            driver.start()
            stack.callback(driver.finish)

        def make_loads(topic: str, history: History) -> Sequence[Load]:
            loads: list[Load] = []
            if "ours" in clients:
                loads.append(OurLoad(hub, hub.nameserver, topic, history, args.seed))
            if driver is not None:
                loads.append(JavaLoad(driver, hub.nameserver, topic, history))
            return loads

        stage = Stage(wires, hub, nursery, get_jars() if args.mixed else None, make_loads)
        for life in plan(args.seed, args.faults, args.only, args.mixed):
            if args.life is None or life.number in args.life:
                names = ", ".join(fault.name for fault in life.faults)
                through = ", through the relay" if life.relayed else ""
                progress(f"pair {life.number}, {' and '.join(life.brokers)}{through}: {names}")
                try:
                    live(life, folder / f"pair-{life.number}", stage, tally)
                except Violation as error:
                    progress(f"VIOLATION: {error}")
                    sys.exit(1)
                progress(
                    f"{tally.total} faults of {args.faults + args.mixed} in "
                    f"{time.monotonic() - began_s:.0f} s, refused by name: {dict(tally.divergences)}"
                )
    shutil.rmtree(folder)
    result = {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {"python": platform.python_version(), "system": platform.platform(terse=True)},
        "seconds": round(time.monotonic() - began_s),
        "seed": args.seed,
        "clients": clients,
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
