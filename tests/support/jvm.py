"""Java for the tests: C1 only, and with the classes of Kafka and Spark from archives (class data sharing).

Most JVMs here live for seconds, and half of their CPU time goes into loading classes. JAVA_HOME becomes a folder whose
`java` is a script: it adds the options by the main class and becomes the real one, under the same process id. An
archive that is not there, or does not fit the class path, is left out by the script or by the JVM. What is measured or
shipped does not pass through here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.jars import KAFKA_VERSION, SPARK_VERSION
from headrace.java import java
from headrace.kafka import KafkaServer
from headrace_core.errors import HeadraceError

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".tools" / "jvm"
DUMP = "HEADRACE_TESTS_JVM_DUMP"
"""Names the folder in which each JVM leaves the archive of its classes."""
SCRIPT = """#!/bin/sh
case "$*" in
  *" kafka.Kafka "*) kind=broker ;;
  *" kafka.tools.StorageTool "*) kind=storage ;;
  *" org.apache.spark.launcher.Main "*) kind=launcher ;;
  *" org.apache.spark.deploy.SparkSubmit "*) kind=spark ;;
  *) exec '{java}' "$@" ;;
esac
if [ -n "${DUMP}" ]; then set -- "-XX:ArchiveClassesAtExit=${DUMP}/$kind.jsa" "$@"
elif [ -f '{archives}'/$kind.jsa ]; then set -- '-XX:SharedArchiveFile={archives}/'$kind.jsa -Xshare:auto "$@"; fi
exec '{java}' -XX:TieredStopAtLevel=1 -Xlog:disable -Xlog:all=error:stderr "$@"
"""


def install() -> Path | None:
    """Point JAVA_HOME to the script, and tell where it is; without a Java runtime that is nowhere.

    The folder is that of the runtime and of this environment's jars: the JVM compares the class path byte by byte.
    """
    try:
        real = java()
    except HeadraceError:
        return None
    if Path(real).is_relative_to(CACHE):
        return Path(real).parents[1]
    (spark,) = importlib.util.find_spec("pyspark").submodule_search_locations
    facts = [real, str(Path(real).resolve()), spark, KAFKA_VERSION, SPARK_VERSION, SCRIPT]
    home = CACHE / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    script = home / "bin" / "java"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        own = script.with_name(f"java-{os.getpid()}")
        own.write_text(SCRIPT.replace("{java}", real).replace("{archives}", f"{home}/archives").replace("DUMP", DUMP))
        own.chmod(0o755)
        own.replace(script)
    os.environ["JAVA_HOME"] = str(home)
    return home


def make_in_background() -> subprocess.Popen[bytes] | None:
    """Make the archives, if they are not there, beside the tests, which use them from then on."""
    home = install()
    if home is None or (home / "archives").exists():
        return None
    log = (home / "log").open("wb")
    return subprocess.Popen([sys.executable, "-m", "tests.support.jvm"], stdout=log, stderr=log, cwd=ROOT)


def make(home: Path) -> None:
    """Run a broker and a Spark once, and keep the classes they had; somebody else may be first."""
    with TemporaryDirectory() as folder, TemporaryDirectory(dir=home, ignore_cleanup_errors=True) as kept:
        os.environ[DUMP] = kept
        KafkaServer(Path(folder) / "kafka").start().stop(timeout_s=300)
        _spark(Path(folder))
        if not (home / "archives").exists():
            Path(kept).rename(home / "archives")


def _spark(folder: Path) -> None:
    """A micro-batch of files, through Python and back, as the writer's."""
    from pyspark.sql import SparkSession

    from tests.support.spark_job import SPARK

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in SPARK.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    (folder / "in").mkdir()
    (folder / "in" / "one.json").write_text('{"a": 1}\n{"a": 2}\n')
    frame = spark.readStream.schema("a long").json(str(folder / "in"))
    writing = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writing.foreachBatch(lambda batch, _: batch.selectExpr("sum(a)").collect()).start().awaitTermination()
    process = spark.sparkContext._gateway.proc
    spark.stop()
    process.stdin.close()
    process.wait(300)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if (found := install()) is not None:
        make(found)
