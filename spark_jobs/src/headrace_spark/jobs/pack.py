"""`python -m headrace_spark.jobs.pack FILE`: the Python environment of the writer as an archive for a cluster.

Theory (spark-writer.md 12): an executor has nothing but Spark. The archive holds an interpreter, its standard library
and every distribution that `headrace-spark` requires, as they run here, so it is exactly what was tested; it works from
any folder, on hosts with the same C library and processor. `bin/python` is a script that finds its own folder: it
shows the loader the interpreter's library, and Python its home and its packages. pyspark itself is left out: it must be
the cluster's own, and Spark puts it in the path of its workers.

    headrace writer pack environment.tar.gz
    spark-submit --archives environment.tar.gz#environment ...      with PYSPARK_PYTHON=./environment/bin/python
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import importlib.util
import io
import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from headrace_core.errors import ConfigError
from headrace_spark import exits

ROOT: Final = "headrace-spark"
SPARKS_OWN: Final = frozenset({"pyspark", "py4j"})
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_UNUSED: Final = frozenset({
    "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "dist-packages",
    "include",
})  # fmt: skip
_LAUNCHER: Final = f"""\
#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P)
export LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export PYTHONHOME="$here" PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/packages"
exec "$here/bin/python{VERSION}" "$@"
"""
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?$", re.DOTALL)
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
Entry = tuple[str, Path]
"""Name in the archive, and the file."""


def closure(roots: Iterable[str], without: Collection[str] = ()) -> dict[str, metadata.Distribution]:
    """The distributions that these need, themselves included, by normal name, but none of `without`; what another
    system or Python would need is not installed here and not missed. Raises `ConfigError` for a root that is not
    installed."""
    left_out = SPARKS_OWN | {_normal(name) for name in without}
    found: dict[str, metadata.Distribution] = {}
    asked: set[tuple[str, str]] = set()
    wanted = [(name, "") for name in roots]
    for name, _ in wanted:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ConfigError("with", f"{name} is not installed") from None
    while wanted:
        name, extra = wanted.pop()
        if _normal(name) in left_out or (_normal(name), extra) in asked:
            continue
        asked.add((_normal(name), extra))
        try:
            found[_normal(name)] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        wanted += _required(found[_normal(name)], extra)
    return found


def entries(roots: Iterable[str], without: Collection[str] = ()) -> Iterator[Entry]:
    """Every file of the archive but the launcher."""
    yield from _interpreter()
    for one in closure(roots, without).values():
        yield from _distribution(one)


def pack(file: Path, more: Iterable[str] = (), without: Collection[str] = (), level: int = 6) -> int:
    """Write the archive, whole or not at all; `level` of compression is 0 to 9. Returns how many files it has. Raises
    `ConfigError` for a name that is not `*.tar.gz`: of all others Spark drops the files' permissions."""
    if not file.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError("file", f"{file} must end with .tar.gz: of others Spark drops the permission to execute")
    scratch = file.with_name(f".{os.getpid()}.{file.name}")
    try:
        with tarfile.open(scratch, "w:gz", compresslevel=level) as out:
            count = _fill(out, [ROOT, *more], without)
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
    return count


def _fill(out: tarfile.TarFile, roots: Iterable[str], without: Collection[str]) -> int:
    launcher = tarfile.TarInfo("bin/python")
    launcher.mode, launcher.size = 0o755, len(_LAUNCHER)
    out.addfile(launcher, io.BytesIO(_LAUNCHER.encode()))
    link = tarfile.TarInfo("bin/python3")
    link.type, link.linkname = tarfile.SYMTYPE, "python"
    out.addfile(link)
    names: set[str] = set()
    for name, path in entries(roots, without):
        if name not in names:
            names.add(name)
            out.add(path.resolve(), name, recursive=False)
    return len(names)


def _interpreter() -> Iterator[Entry]:
    """The executable, its shared library if it has one, and the standard library."""
    yield f"bin/python{VERSION}", Path(sys.executable).resolve()
    shared = sysconfig.get_config_var("INSTSONAME")
    folder = sysconfig.get_config_var("LIBDIR")
    if shared and folder and ".so" in shared and (Path(folder) / shared).exists():
        yield f"lib/{shared}", Path(folder) / shared
    for kind in ("stdlib", "platstdlib"):
        at = Path(sysconfig.get_path(kind, vars={"base": sys.base_prefix, "platbase": sys.base_prefix}))
        at = at if at.is_dir() else Path(os.__file__).parent
        yield from _folder(at, f"lib/python{VERSION}")


def _folder(at: Path, name: str) -> Iterator[Entry]:
    for here, folders, files in os.walk(at):
        folders[:] = sorted(one for one in folders if one not in _UNUSED and not one.startswith("config-"))
        inside = Path(here).relative_to(at)
        for file in sorted(files):
            if not file.endswith((".a", ".opt-1.pyc", ".opt-2.pyc")):
                yield str(Path(name) / inside / file), Path(here) / file


def _distribution(one: metadata.Distribution) -> Iterator[Entry]:
    """Its files, compiled ones too if they are there; of one that is installed as editable, its package."""
    direct = one.read_text("direct_url.json") or ""
    files = [] if '"editable":true' in direct.replace(" ", "") else one.files or []
    for file in files:
        if ".." in file.parts or _UNUSED & set(file.parts[:-1]) - {"include"}:
            continue
        path = Path(str(one.locate_file(file)))
        if not path.is_file():
            continue
        yield f"packages/{file}", path
        compiled = Path(importlib.util.cache_from_source(str(path))) if path.suffix == ".py" else None
        if compiled is not None and compiled.is_file():
            yield f"packages/{file.parent / '__pycache__' / compiled.name}", compiled
    if not files:
        package = one.metadata["Name"].replace("-", "_")
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            yield from _folder(Path(place), f"packages/{package}")


def _required(one: metadata.Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """(name, extra) of each requirement, those of `extra` if there is one."""
    for text in one.requires or []:
        match = _REQUIREMENT.match(text)
        if match is None:
            continue
        wanted = _EXTRA.findall(match[4] or "")
        if (extra in wanted) if extra else not wanted:
            yield match[1], ""
            yield from ((match[1], part.strip()) for part in (match[2] or "").split(",") if part.strip())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="headrace writer pack", description="Pack the writer's Python environment.")
    parser.add_argument("file", type=Path, help="*.tar.gz")
    more = "one more distribution with what it needs, as that of a function in `cost` or `sink`; repeatable"
    parser.add_argument("--with", dest="more", action="append", default=[], metavar="NAME", help=more)
    less = "leave this one out, as deltalake where nothing is written there; repeatable"
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help=less)
    parser.add_argument("--level", type=int, default=6, choices=range(10), help="of compression")
    given = parser.parse_args(arguments)
    try:
        count = pack(given.file, given.more, given.without, given.level)
    except (ConfigError, OSError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return exits.CONFIGURATION if isinstance(error, ConfigError) else exits.FAILURE
    print(f"{given.file}: {count} files, {given.file.stat().st_size / 1e6:.0f} MB")
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main())
