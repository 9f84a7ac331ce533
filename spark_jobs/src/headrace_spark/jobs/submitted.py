"""A job that was started by `spark-submit` (spark-writer.md 12): master and settings come from there.

Theory: `spark-submit` has a JVM running before Python begins, and has told it the master, the packages, the archive and
every `--conf`. What the job file's `[spark]` says still goes before it, as in every Spark program; our own defaults do
not. `settings.load` gets what was told, so the checks of the job file (speculation, a lease store where workers are on
other hosts, no secrets) see what is really in force.
"""

from __future__ import annotations

import os
from typing import Final

_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"


def by_spark_submit() -> bool:
    """Whether this process was started by spark-submit."""
    return _GATEWAY in os.environ


def told() -> dict[str, str]:
    """What spark-submit told the JVM, by Spark's names; nothing if it is not there."""
    if not by_spark_submit():
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return {name: value for name, value in SparkConf(_jvm=SparkContext._jvm).getAll() if name.startswith("spark.")}
