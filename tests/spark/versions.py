"""The tests of Spark with each version of Spark there is support for: ``make spark-versions``.

A version other than the installed one is put into a folder that comes first on Python's path; all else stays
the same. What each came to is written down.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VERSIONS = ("4.2.1", "4.3.0")
# Tables in batch and streaming, both directions, and the commands; a cluster whose executors have nothing,
# and Spark Connect.
TESTS = ("tests/spark", "tests/pipeline", "tests/docs/test_spark.py")
LONG = ("tests/spark/test_cluster.py", "tests/spark/test_connect.py")
CONNECT = ("grpcio-status>=1.76", "googleapis-common-protos>=1.65")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.versions", description=__doc__)
    parser.add_argument("--versions", default=",".join(VERSIONS))
    parser.add_argument("--out", type=Path, help="a file for the result")
    arguments = parser.parse_args()
    results = [run(version) for version in arguments.versions.split(",")]
    told = {"python": sys.version.split()[0], "pyarrow": metadata.version("pyarrow"), "versions": results}
    print(json.dumps(told, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(each["failed"] or not each["passed"] for each in results))


def run(version: str) -> dict[str, Any]:
    """All of them with one version."""
    environment = {**os.environ, "PYTHONPATH": str(_installed(version)), "KEROLOX_SPARK_VERSION": version}
    began_s = time.monotonic()
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures: list[str] = []
    runs = (("not long", TESTS, ("-n", "2", "--dist", "loadgroup")), ("long", LONG, ()))
    for number, (mark, tests, more) in enumerate(runs):
        report = ROOT / "build" / f"spark-{version}-{number}.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", mark, f"--junitxml={report}", *more, *tests]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        for case in xml.parse(report).getroot().iter("testcase"):
            outcome = next(
                (child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed"
            )
            outcome = "failed" if outcome in ("failure", "error") else outcome
            counts[outcome] += 1
            if outcome != "passed":
                failures.append(f"{outcome}: {case.get('classname')}.{case.get('name')}")
    result = {
        "spark": version,
        **counts,
        "seconds": round(time.monotonic() - began_s),
        "not passed": failures,
    }
    print(json.dumps(result), flush=True)
    return result


def _installed(version: str) -> Path:
    """A folder with this version, and with what its Connect needs."""
    folder = ROOT / "build" / f"spark-{version}"
    if not (folder / ".complete").exists():
        wanted = [*CONNECT]
        if metadata.version("pyspark") != version:
            wanted.append(f"pyspark=={version}")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *wanted]
        subprocess.run(install, check=True)
        (folder / ".complete").touch()
    return folder


if __name__ == "__main__":
    main()
