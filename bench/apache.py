"""Apache's servers as benchmarks start them: with both compilers and the collector its own script chooses.

The tests start the same jars for a quick start and a short life; a benchmark must not.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.peers.jars import Jars
from tests.peers.java import OPEN_PACKAGES, find_java
from tests.peers.processes import log_settings, write_home

# runserver.sh, but for the heap (4 GiB there) and the region size that goes with it.
NAMESRV_FLAGS = (
    "-server",
    "-Xms256m",
    "-Xmx512m",
    "-XX:MetaspaceSize=128m",
    "-XX:MaxMetaspaceSize=320m",
    "-XX:+UseG1GC",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UseLargePages",
)


def nameserver_command(jars: Jars, home: Path, config: Path, *, tls: bool) -> list[str]:
    """The command line of a name server whose files are all under ``home``."""
    write_home(home)
    properties = {
        "user.home": str(home),
        "java.io.tmpdir": str(home),
        "java.net.preferIPv4Stack": "true",
        **log_settings(home),
        # By default it makes certificates at its start, which takes a while; serving is the same.
        **({} if tls else {"tls.server.mode": "disabled"}),
    }
    return [
        str(find_java().path),
        *NAMESRV_FLAGS,
        *(f"--add-opens={package}=ALL-UNNAMED" for package in OPEN_PACKAGES),
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-cp",
        jars.classpath,
        "org.apache.rocketmq.namesrv.NamesrvStartup",
        "-c",
        str(config),
    ]


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    return {**kept, "ROCKETMQ_HOME": str(home)}
