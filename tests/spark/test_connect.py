"""Spark Connect: the same formats, with a driver that is in another process.

The session lives in a program of its own: a process has either a session of its own, as all other tests here
do, or one that is far away.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from kerolox.client.messages import Message, Receipt
from kerolox.spark.java import find_java
from kerolox.testing.threads import BrokerThread

Send = Callable[[Sequence[Message]], list[Receipt]]

# A JVM of its own, for a minute on a busy machine: told by make spark and make spark-versions.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600), pytest.mark.long]

PROGRAM = """
import json, sys
import kerolox.spark
from pyspark.sql import SparkSession

nameserver, topic, copies, checkpoint = sys.argv[1:]
found = {}
begun = SparkSession.builder.remote("local[2]").config("spark.kerolox.secretKey", "hush")
spark = begun.getOrCreate()
found["shown"] = [value for value in spark.conf.getAll.values() if "hush" in value]
spark.conf.set("spark.kerolox.nameserver", nameserver)
kerolox.spark.register(spark)

def table(name):
    return spark.read.format("rocketmq").option("topic", name).load()

found["read"] = table(topic).count()
paid = table(topic).where("tags = 'paid'").select("body", "keys")
paid.write.format("rocketmq").option("topic", copies).mode("append").save()
found["written"] = table(copies).count()
stream = spark.readStream.format("rocketmq").option("topic", topic).option("startingOffsets", "earliest")
query = (
    stream.option("group", "over-connect").load().select("body", "keys").writeStream.format("rocketmq")
    .option("topic", copies).option("deliveryGuarantee", "effectively-once")
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
found["streamed"] = table(copies).count() - found["written"]
try:
    table("no-such-topic").count()
except Exception as error:
    found["missing"] = str(error).splitlines()[0]
print("FOUND " + json.dumps(found))
spark.stop()
"""


def test_reads_writes_and_streams_over_connect(
    broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    if find_spec("grpc_status") is None:
        pytest.skip("Spark Connect's client is not installed: pip install 'pyspark[connect]'")
    if not find_java().has_vector_module:
        pytest.skip("the server is started by Spark's own scripts, which need a complete JDK")
    topic, copies = new_topic(), new_topic()
    send([Message(topic, f"{n}", keys=f"k{n}", tags="paid" if n % 2 else "open") for n in range(100)])
    words = [broker.nameserver_address, topic, copies, str(tmp_path / "checkpoint")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=500, cwd=tmp_path,
    )  # fmt: skip
    told = [line for line in done.stdout.splitlines() if "FOUND " in line]
    assert told, done.stderr[-4000:]
    found = json.loads(told[0].split("FOUND ", 1)[1])
    assert (found["read"], found["written"], found["streamed"]) == (100, 50, 100)
    assert "no-such-topic" in found["missing"]
    assert found["shown"] == []  # secrets of the server stay there
