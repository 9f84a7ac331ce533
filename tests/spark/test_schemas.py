"""Spark reads the valid examples of a document by the generated schema, and gives them back as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.java import java
from headrace_schemas import examples, spark_schema
from headrace_schemas.spark_types import NAMES
from headrace_spark.jobs import process
from headrace_spark.transforms.decode import decode
from headrace_spark.transforms.measurements import measurements

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A small local Spark without a web page."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(Path(java()).resolve().parent.parent))
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        yield session
        session.stop()


def struct(name: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromJson(spark_schema(name))


def read(spark: Any, name: str, values: list[str]) -> list[dict[str, Any]]:
    """What `from_json` makes of the values of Kafka records, as JSON values again."""
    from pyspark.sql import functions as f

    frame = spark.createDataFrame([(value.encode(),) for value in values], "value binary")
    parsed = f.from_json(f.col("value").cast("string"), struct(name), {"mode": "FAILFAST"})
    rows = frame.select(f.to_json(parsed, {"ignoreNullFields": "true"}).alias("text")).collect()
    return [json.loads(row.text) for row in rows]


def without_nulls(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None}


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_come_back_as_they_were(spark: Any, name: str) -> None:
    valid = examples(name)["valid"]
    assert read(spark, name, [json.dumps(document) for document in valid]) == list(map(without_nulls, valid))


def test_spark_and_the_writer_read_the_same_measurements(spark: Any) -> None:
    """Identity, times and every numeric leaf of each member."""
    for document in examples("batch")["valid"]:
        text = json.dumps(document)
        taken = measurements(decode(text.encode(), 1_000_000))
        [row] = read(spark, "batch", [text])
        assert (row["id"], row["source"], row["closed_at"]) == (taken.id, taken.source, taken.closed_at)
        again = measurements(decode(json.dumps(row).encode(), 1_000_000))
        assert again.measurements == taken.measurements
        assert len(row["members"]) == taken.members


def test_sparks_plans_show_no_secret_of_the_kafka_options(spark: Any) -> None:
    """The web page and the event log have the plans of a query, with the options of its source (spark-writer.md 12)."""
    secrets = {
        "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY----- Waldkauz",
        "kafka.sasl.jaas.config": 'OAuthBearerLoginModule required clientId="a" clientSecret="Steinkauz";',
        "kafka.ssl.truststore.certificates": "public",
    }

    def plan() -> str:
        frame = spark.readStream.format("rate").options(**secrets).load()
        return str(frame._jdf.queryExecution().toString())

    name = "spark.sql.redaction.options.regex"
    assert "Waldkauz" in plan(), "what Spark does by itself"
    before = spark.conf.get(name)
    spark.conf.set(name, process.REDACTED)
    try:
        shown = plan()
    finally:
        spark.conf.set(name, before)
    assert "kauz" not in shown
    assert "public" in shown
