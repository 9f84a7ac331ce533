"""An HDFS of one name node and one data node on this host: Hadoop's own mini cluster, as a process of its own.

Its jars come as Kafka's do (`headrace.jars`), of the Hadoop that the pyspark wheel brings; the client is that wheel's.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from headrace import child_exec, jars
from headrace.java import java

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
HADOOP_VERSION = re.sub(r"hadoop-client-api-(.*)\.jar", r"\1", next(SPARK_JARS.glob("hadoop-client-api-*.jar")).name)
MINICLUSTER = jars.JarSet(  # the mini cluster asks for JUnit only to assert
    "hadoop-minicluster",
    HADOOP_VERSION,
    "hadoop-client-minicluster-",
    f'<dependency org="org.apache.hadoop" name="hadoop-client-minicluster" rev="{HADOOP_VERSION}"/>'
    '<dependency org="org.junit.jupiter" name="junit-jupiter-api" rev="5.13.4"/>'
    '<exclude org="org.apache.hadoop" module="hadoop-client-api"/>'
    '<exclude org="org.apache.hadoop" module="hadoop-client-runtime"/>'
    '<exclude org="org.xerial.snappy"/>',
)
CLIENT = {"spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10"}
"""How long a client waits before it asks again whether the data node has told of a block; 400 ms if it is not said."""
READY_S = 300
_CLIENT = ("hadoop-client-api-*", "hadoop-client-runtime-*", "jcl-over-slf4j-*", "slf4j-api-*", "log4j-*")


class Hdfs:
    """A name node at `url`, all in `folder`; its superuser is who runs the tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> Hdfs:
        """Start it and wait until it is ready."""
        told = self._folder / "details.json"
        needed = [str(jar) for name in _CLIENT for jar in SPARK_JARS.glob(f"{name}.jar")]
        path = ":".join([f"{jars.folder(MINICLUSTER)}/*", *needed])
        command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path]
        command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1", "-nnport", "0"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                child_exec.command([*command, "-writeDetails", str(told)]), stdout=log, stderr=log, cwd=self._folder
            )
        deadline = time.monotonic() + READY_S
        while not told.exists() or not told.read_text().endswith("}"):
            assert self._process.poll() is None, self.log()[-4000:]
            assert time.monotonic() < deadline, self.log()[-4000:]
            time.sleep(0.1)
        self.url = f"hdfs://127.0.0.1:{json.loads(told.read_text())['namenode_port']}"
        return self

    def stop(self) -> None:
        """At once: nothing of it is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")


@contextmanager
def hdfs(folder: Path) -> Iterator[Hdfs]:
    """A running one; it dies with the thread that started it."""
    found = Hdfs(folder)
    try:
        yield found.start()
    finally:
        found.stop()


def end_jvm() -> None:
    """End the JVM that `headrace_spark.jobs.folder` started in this process."""
    from pyspark import SparkContext

    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
