"""The published jars of Apache Kafka and of Spark's Kafka connector, kept in a user cache.

The Ivy that the pyspark wheel brings resolves them once, and checks the repository's checksums of all that it loads. A
folder is complete when its file `complete` is there; it holds the SHA-256 of every jar, and they are checked before
each use, so a damaged cache is fetched anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.java import java
from headrace_core.errors import HeadraceError

KAFKA_VERSION = "4.4.0"
SPARK_VERSION = "4.2.0"
IVY_FILE = """<ivy-module version="2.0">
  <info organisation="headrace" module="{name}-jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default">{dependencies}</dependencies>
</ivy-module>
"""


@dataclass(frozen=True)
class JarSet:
    """Jars that are fetched together. `first` is the start of the main jar's name; `dependencies` is Ivy's XML."""

    name: str
    version: str
    first: str
    dependencies: str


DOWNLOAD_S = 900

KAFKA = JarSet(
    "kafka",
    KAFKA_VERSION,
    "kafka_2.13-",
    f'<dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"/>'
    '<dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4"/>',
)
CONNECTOR = JarSet(  # Hadoop is in the pyspark wheel already
    "spark-kafka",
    SPARK_VERSION,
    "spark-sql-kafka-",
    f'<dependency org="org.apache.spark" name="spark-sql-kafka-0-10_2.13" rev="{SPARK_VERSION}"/>'
    '<exclude org="org.apache.hadoop"/>',
)


class JarsMissing(HeadraceError):
    """The jars are not in the cache and could not be downloaded."""

    code = "jars_missing"
    retry = True


def cache_dir() -> Path:
    """The user's cache folder of headrace."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def kafka_jars() -> Path:
    """Folder with the jars of Kafka; downloads them if it is not complete. Raises JarsMissing, NoJava."""
    return folder(KAFKA)


def connector_jars() -> list[Path]:
    """The jars that let Spark read Kafka; downloads them if they are not complete. Raises JarsMissing, NoJava."""
    return sorted(folder(CONNECTOR).glob("*.jar"))


def folder(wanted: JarSet) -> Path:
    """Folder with the jars of a set; downloads them if it is not complete. Raises JarsMissing, NoJava."""
    kept = cache_dir() / f"{wanted.name}-{wanted.version}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with (kept.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _complete(kept):
            _download(wanted, kept)
    return kept


def _sums(folder: Path) -> str:
    lines = [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}" for jar in sorted(folder.glob("*.jar"))]
    return "\n".join(lines) + "\n"


def _complete(folder: Path) -> bool:
    mark = folder / "complete"
    return mark.is_file() and mark.read_text() == _sums(folder)


def _download(wanted: JarSet, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        (Path(work) / "ivy.xml").write_text(IVY_FILE.format(name=wanted.name, dependencies=wanted.dependencies))
        retrieved = Path(work) / "jars"
        command = [java(), "-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-ivy", f"{work}/ivy.xml"]
        command += ["-cache", f"{work}/cache", "-types", "jar", "bundle", "-warn"]
        command += ["-retrieve", f"{retrieved}/[artifact]-[revision].[ext]"]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_S)
        except subprocess.TimeoutExpired as error:
            what = f"the jars of {wanted.name} {wanted.version}"
            raise JarsMissing(f"{what} were not fetched within {DOWNLOAD_S} s") from error
        if ran.returncode or not list(retrieved.glob(f"{wanted.first}*.jar")):
            raise JarsMissing(
                f"the jars of {wanted.name} {wanted.version} could not be fetched: {(ran.stdout + ran.stderr)[-800:]}"
            )
        (retrieved / "complete").write_text(_sums(retrieved))
        retrieved.rename(folder)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsMissing("pyspark is not installed; its wheel brings the Ivy that fetches the jars")
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
