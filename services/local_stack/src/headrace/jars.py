"""The published jars of Apache Kafka, resolved once by the Ivy that the pyspark wheel brings, kept in a user cache.

Ivy checks the repository's checksums of all that it downloads. A folder is complete when its file `complete` is there;
it holds the SHA-256 of every jar, and they are checked before each use, so a damaged cache is fetched anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from headrace.java import java
from headrace_core.errors import HeadraceError

KAFKA_VERSION = "4.4.0"
IVY_FILE = f"""<ivy-module version="2.0">
  <info organisation="headrace" module="kafka-jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->default">
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4"/>
  </dependencies>
</ivy-module>
"""


class JarsMissing(HeadraceError):
    """The jars are not in the cache and could not be downloaded."""

    code = "jars_missing"
    retry = True


def cache_dir() -> Path:
    """The user's cache folder of headrace."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def kafka_jars() -> Path:
    """Folder with the jars of Kafka; downloads them if it is not complete. Raises JarsMissing, NoJava."""
    folder = cache_dir() / f"kafka-{KAFKA_VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _complete(folder):
            _download(folder)
    return folder


def _sums(folder: Path) -> str:
    lines = [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}" for jar in sorted(folder.glob("*.jar"))]
    return "\n".join(lines) + "\n"


def _complete(folder: Path) -> bool:
    mark = folder / "complete"
    return mark.is_file() and mark.read_text() == _sums(folder)


def _download(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        (Path(work) / "ivy.xml").write_text(IVY_FILE)
        retrieved = Path(work) / "jars"
        command = [java(), "-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-ivy", f"{work}/ivy.xml"]
        command += ["-cache", f"{work}/cache", "-types", "jar", "bundle", "-warn"]
        command += ["-retrieve", f"{retrieved}/[artifact]-[revision].[ext]"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode or not list(retrieved.glob("kafka_2.13-*.jar")):
            raise JarsMissing(
                f"the jars of Kafka {KAFKA_VERSION} could not be fetched: {(ran.stdout + ran.stderr)[-800:]}"
            )
        (retrieved / "complete").write_text(_sums(retrieved))
        retrieved.rename(folder)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsMissing("pyspark is not installed; its wheel brings the Ivy that fetches the jars")
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
