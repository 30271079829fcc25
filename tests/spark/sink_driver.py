"""A streaming query in a process of its own, to be killed: files of a folder to a topic, one file a batch.

``python -m tests.spark.sink_driver NAMESERVER TOPIC FOLDER CHECKPOINT``
"""

from __future__ import annotations

import sys

from kerolox.spark.session import session


def main(nameserver: str, topic: str, folder: str, checkpoint: str) -> None:
    quick = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }
    spark = session("kerolox-killed", "local[2,2]", conf=quick)
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 2)
        .load(folder)
        .selectExpr("value as body", "substring(value, 1, 1) as ordering_key")
        .writeStream.format("rocketmq")
        .options(nameserver=nameserver, topic=topic, deliveryGuarantee="effectively-once", batchBytes="1k")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
