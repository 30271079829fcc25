"""All benchmarks, or the named ones, one after the other, and the page made of their results.

``python -m bench``, ``python -m bench codec store``, ``python -m bench broker --quick``: what follows a
single name goes to that benchmark.
"""

from __future__ import annotations

import sys

from bench import (
    access,
    broker,
    client,
    codec,
    failover,
    later,
    nameserver,
    replication,
    report,
    spark,
    store,
)

BENCHMARKS = {
    "codec": codec,
    "store": store,
    "nameserver": nameserver,
    "broker": broker,
    "access": access,
    "replication": replication,
    "failover": failover,
    "later": later,
    "client": client,
    "spark": spark,
}


def main(argv: list[str]) -> None:
    names = [word for word in argv if word in BENCHMARKS]
    others = [word for word in argv if word not in BENCHMARKS]
    if others and len(names) != 1:
        sys.exit(f"usage: python -m bench [{' | '.join(BENCHMARKS)}]...; got {' '.join(others)}")
    for name in names or BENCHMARKS:
        print(f"== {name}", flush=True)
        BENCHMARKS[name].main(others)
    report.write()


if __name__ == "__main__":
    main(sys.argv[1:])
