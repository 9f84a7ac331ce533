"""The folder of the job's checkpoint, and the JVM that one on a file system of Hadoop needs (spark-writer.md 12).

Theory: whether a start is safe must be known before Spark starts an application. So only its JVM is started, with the
options of the session that follows, which takes the JVM over; under spark-submit it runs already. Hadoop's
configuration is the one that the session will have: `HADOOP_CONF_DIR`, and what is named `spark.hadoop.*`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from headrace_core.errors import HeadraceError
from headrace_spark.folders.local import LocalFolder
from headrace_spark.folders.port import Folder, is_uri


class NoJvm(HeadraceError):
    """Spark's JVM did not start; it has said why."""

    code = "no_jvm"
    retry = True


def checkpoint_folder(checkpoint: str, options: Mapping[str, str]) -> Folder:
    """The folder that a job file names; `options` of Spark, for the JVM if it must be started. Raises `NoJvm`."""
    if not is_uri(checkpoint):
        return LocalFolder(Path(checkpoint))
    parts = urlsplit(checkpoint)
    if parts.scheme == "file":
        return LocalFolder(Path(parts.path))
    return _on_hadoop(checkpoint, options)


def _on_hadoop(checkpoint: str, options: Mapping[str, str]) -> Folder:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError

    from headrace_spark.folders.hadoop import HadoopFolder

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    pairs = list(options.items())
    try:
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(pairs))
    except PySparkRuntimeError as error:
        raise NoJvm(f"the checkpoint {checkpoint} needs Spark's JVM, which did not start: {error}") from None
    gateway = SparkContext._gateway
    jvm = gateway.jvm
    jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel(jvm.org.apache.logging.log4j.Level.ERROR)
    told = SparkConf(_jvm=jvm).setAll(pairs)
    hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(told._jconf)
    return HadoopFolder(gateway, hadoop, checkpoint)
