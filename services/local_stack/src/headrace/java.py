"""The Java runtime that Kafka and Spark need: 17, 21 or 25, of JAVA_HOME, of the PATH or where systems put them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace_core.errors import HeadraceError

VERSIONS = (17, 21, 25)
PLACES = (
    "/usr/lib/jvm/*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
    "/opt/homebrew/opt/openjdk*/bin/java",
    "/usr/local/opt/openjdk*/bin/java",
)


class NoJava(HeadraceError):
    """No usable Java runtime; the message says what to install."""

    code = "no_java"


def java() -> str:
    """Path of a Java runtime of one of `VERSIONS`. Raises NoJava."""
    seen = []
    for candidate in _candidates():
        version = _major(candidate)
        if version in VERSIONS:
            return candidate
        seen.append(f"{candidate} is {version or 'not usable'}")
    found = f" ({', '.join(seen)})" if seen else ""
    raise NoJava(f"Java 17, 21 or 25 is needed{found}: install one, e.g. apt-get install openjdk-17-jre-headless")


def _candidates() -> list[str]:
    homes = [Path(home) / "bin" / "java" for home in [os.environ.get("JAVA_HOME", "")] if home]
    found = [str(path) for path in homes if path.is_file()]
    on_path = shutil.which("java")
    elsewhere = sorted(str(path) for place in PLACES for path in Path("/").glob(place.lstrip("/")))
    return list(dict.fromkeys([*found, *([on_path] if on_path else []), *elsewhere]))


def _major(candidate: str) -> int | None:
    try:
        ran = subprocess.run([candidate, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return None
    match = re.search(r'version "(\d+)', ran.stderr)
    return int(match.group(1)) if match else None
