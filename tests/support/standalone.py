"""A standalone Spark cluster on this host: a master and workers from pyspark's own jars, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from headrace import child_exec
from headrace.java import java

HOME = Path(pyspark.__file__).parent
SUBMIT = HOME / "bin" / "spark-submit"
READY_S = 600
SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_OPENS = ("base/java.lang", "base/java.lang.invoke", "base/java.nio", "base/java.util", "base/sun.nio.ch",
          "base/java.util.concurrent", "base/java.net")  # fmt: skip


class Cluster:
    """`master` is its URL, `web` the address of the master's page, `work` the folder of the workers' executors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.master = self.web = ""

    def start(self, workers: int, memory: str) -> Cluster:
        """Start the master and `workers` workers with one core each, and wait until the master knows them."""
        base = "org.apache.spark.deploy"
        self._run("master", f"{base}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = self._told("master", r"Starting Spark master at (spark://\S+)")
        port = self._told("master", r"Successfully started service 'MasterUI' on port (\d+)")
        self.web = f"http://127.0.0.1:{port}"
        for number in range(workers):
            where = ("--work-dir", str(self.work / str(number)), "--host", "127.0.0.1", "--webui-port", "0")
            size = ("--cores", "1", "--memory", memory)
            self._run(f"worker{number}", f"{base}.worker.Worker", *where, *size, self.master)
        for number in range(workers):
            self._told(f"worker{number}", r"Successfully registered with master (\S+)")
        return self

    def stop(self) -> None:
        """End all; executors go with their workers."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def page(self) -> str:
        """The master's web page."""
        return get(self.web)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _run(self, name: str, main: str, *arguments: str) -> None:
        opens = [f"--add-opens=java.{one}=ALL-UNNAMED" for one in _OPENS]
        logging = f"-Dlog4j2.configurationFile={self._log4j()}"
        command = [java(), *SMALL, *opens, logging, "-cp", f"{HOME}/jars/*", main, *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                child_exec.command(command), stdout=log, stderr=log, cwd=self.folder, env=environment()
            )
        self.processes.append(process)

    def _log4j(self) -> Path:
        file = self.folder / "log4j2.properties"
        file.write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
            "appender.out.name = out\nappender.out.layout.type = PatternLayout\nappender.out.layout.pattern = %m%n\n"
        )
        return file

    def _told(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log(name))
            if found:
                return found[1]
            assert self.processes[-1].poll() is None, self.log(name)[-2000:]
            time.sleep(0.1)
        raise TimeoutError(f"{name} did not say {pattern}: {self.log(name)[-2000:]}")


@contextmanager
def cluster(folder: Path, workers: int = 2, memory: str = "1g") -> Iterator[Cluster]:
    """A running cluster; its processes die with the thread that started it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Cluster(folder)
    try:
        yield found.start(workers, memory)
    finally:
        found.stop()


def environment(**more: str) -> dict[str, str]:
    """Of Spark's processes: nothing of ours but what they need, so that only the archive can bring Python packages."""
    plain = {"PATH": "/usr/bin:/bin", "SPARK_HOME": str(HOME), "JAVA_HOME": str(Path(java()).resolve().parents[1])}
    plain["SPARK_SCALA_VERSION"] = "2.13"  # as bin/load-spark-env.sh says it; a worker without cannot start executors
    return {**plain, "SPARK_LOCAL_IP": "127.0.0.1", "HOME": os.environ.get("HOME", "/"), **more}


def submit(master: str, archive: Path, jars: str, conf: Mapping[str, str], *job: str) -> list[str]:
    """The command line of spark-submit for the writer."""
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    return [
        str(SUBMIT), "--master", master, "--deploy-mode", "client", "--archives", f"{archive}#environment",
        "--jars", jars, *settings, *job,
    ]  # fmt: skip


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: Any = answer.read().decode(errors="replace")
    return str(text)
