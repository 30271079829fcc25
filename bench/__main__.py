"""All benchmarks, one after the other, and the page made of their results."""

from __future__ import annotations

from bench import codec, nameserver, report, store


def main() -> None:
    for benchmark in (codec, store, nameserver):
        print(f"== {benchmark.__name__}", flush=True)
        benchmark.main([])
    report.write()


if __name__ == "__main__":
    main()
