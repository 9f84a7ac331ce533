"""What stands beside the writer in the same run: plain COPY by psycopg, and Spark's own JDBC writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import psycopg
from psycopg import sql

from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.transforms.decode import decode
from headrace_spark.transforms.measurements import measurements
from headrace_spark.transforms.rows import Row, rows

CHUNK = 1000
DRIVER = "org.postgresql:postgresql:42.7.8"
COLUMNS = ("source", "metric", "time_ms", "value", "boolean", "closed_at", "batch")
TYPES = ("text", "text", "int8", "float8", "bool", "int8", "text")


def rows_of(values: Sequence[bytes]) -> list[Row]:
    """The rows of these documents, ready to be copied."""
    return [row for value in values for row in rows(measurements(decode(value, 8_000_000)))]


def copy_rate(database: str, found: Sequence[Row], table: str = "bench_copy") -> float:
    """Rows/s of COPY by one connection into the writer's own kind of table, 1,000 rows a transaction."""
    sink = PostgresSink(database, table)
    sink.prepare()
    sink.close()
    names = sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    text = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(sql.Identifier(table), names)
    with psycopg.connect(database, autocommit=True) as db:
        began = time.monotonic()
        for at in range(0, len(found), CHUNK):
            with db.transaction(), db.cursor() as cursor, cursor.copy(text) as copy:
                copy.set_types(TYPES)
                for row in found[at : at + CHUNK]:
                    copy.write_row(
                        (row.source, row.metric, row.time_ms, row.value, row.boolean, row.closed_at, row.batch)
                    )
        return len(found) / (time.monotonic() - began)


def jdbc_rate(database: str, count: int) -> tuple[float, str]:
    """Rows/s of Spark's JDBC writer (append, two connections, batches of 1,000, rewritten into multi-row inserts), and
    an empty text; or 0 and why it could not be measured."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench.spark.rivals", database, str(count)],
        capture_output=True, text=True, check=False, timeout=900, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        unresolved = "unresolved dependency" in ran.stderr or "not found" in ran.stderr
        return 0.0, f"{DRIVER} could not be resolved" if unresolved else ran.stderr.strip()[-300:]
    return float(json.loads(lines[-1])["rate"]), ""


def _jdbc(database: str, count: int) -> float:
    """In a process of its own: the second write counts, the first one warms up."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", DRIVER)
        .config("spark.driver.memory", "768m")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    user, _, where = database.removeprefix("postgresql://").partition("@")
    url = f"jdbc:postgresql://{where}?reWriteBatchedInserts=true&stringtype=unspecified"
    told = {
        "user": user,
        "driver": "org.postgresql.Driver",
        "batchsize": str(CHUNK),
        "isolationLevel": "READ_COMMITTED",
    }
    took = 0.0
    for first, number in ((0, 1000), (1000, count)):
        frame = spark.range(first, first + number, 1, 2).selectExpr(
            "concat('te/device/d', id % 200, '//') AS source", "'env.temperature' AS metric", "id AS time_ms",
            "double(id % 997) AS value", "false AS boolean", "3L AS closed_at", "lpad(hex(id), 32, '0') AS batch",
        )  # fmt: skip
        began = time.monotonic()
        frame.write.jdbc(url, "bench_jdbc", mode="append", properties=told)
        took = time.monotonic() - began
    spark.stop()
    return count / took


if __name__ == "__main__":
    target = PostgresSink(sys.argv[1], "bench_jdbc")
    target.prepare()
    target.close()
    print(json.dumps({"rate": _jdbc(sys.argv[1], int(sys.argv[2]))}))
