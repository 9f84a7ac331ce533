"""A real PostgreSQL for tests: the installed server's own binaries, on a free loopback port, in a scratch folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from headrace.kafka import free_port

FAST = "-c fsync=off"


def binaries() -> Path | None:
    """The folder with `initdb` and `pg_ctl`, newest version first; None if there is no server on this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda at: int(at.parts[-3]), reverse=True)
    if found:
        return found[0].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@dataclass
class Server:
    """`restart()`: it is killed and started again, with what was committed."""

    url: str
    restart: Callable[[], None]


@contextmanager
def server() -> Iterator[str]:
    """Start a server and yield its URL; it is stopped and deleted afterwards."""
    with running(FAST) as found:
        yield found.url


def for_tests() -> Iterator[str]:
    """The body of a fixture: the URL of a server, or the tests are skipped where none is installed."""
    if binaries() is None:
        pytest.skip("no PostgreSQL server on this machine")
    with server() as url:
        yield url


@contextmanager
def running(options: str = "") -> Iterator[Server]:
    """A server with these options, durable unless they say otherwise; it is stopped and deleted afterwards."""
    where = binaries()
    if where is None:
        raise FileNotFoundError("no PostgreSQL server is installed")
    folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
    user = {"user": "postgres"} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "postgres")
    port = free_port()
    data = folder / "data"
    settings = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' {options}"

    def run(*command: str) -> None:
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)

    def start() -> None:
        run(
            str(where / "pg_ctl"),
            "-D",
            str(data),
            "-w",
            "-t",
            "600",
            "-l",
            str(folder / "log"),
            "-o",
            settings,
            "start",
        )

    def stop() -> None:
        run(str(where / "pg_ctl"), "-D", str(data), "-w", "-t", "600", "-m", "immediate", "stop")

    def restart() -> None:
        stop()
        start()

    try:
        run(str(where / "initdb"), "-D", str(data), "-U", "headrace", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
        start()
        try:
            yield Server(f"postgresql://headrace@127.0.0.1:{port}/postgres", restart)
        finally:
            stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def away(url: str) -> Iterator[None]:
    """The server is down inside."""
    with psycopg.connect(url) as db:
        [data] = db.execute("SHOW data_directory").fetchone() or [""]
    started = shlex.split((Path(data) / "postmaster.opts").read_text())
    options = started[started.index("-p") :]  # behind the folder, which pg_ctl names itself
    _control(data, "stop")
    try:
        yield
    finally:
        _control(data, "-o", shlex.join(options), "start")


def _control(data: str, *what: str) -> None:
    where = binaries()
    assert where is not None
    command = [
        str(where / "pg_ctl"),
        "-D",
        data,
        "-w",
        "-t",
        "600",
        "-m",
        "immediate",
        "-l",
        f"{Path(data).parent}/log",
        *what,
    ]
    user = {"user": "postgres"} if os.geteuid() == 0 else {}
    subprocess.run(command, check=True, cwd=Path(data).parent, stdout=subprocess.DEVNULL, **user)


def crash(url: str) -> None:
    """End the server at once, as a crash does, and start it again: it recovers, and unlogged tables are empty."""
    with psycopg.connect(url) as db:
        [data] = db.execute("SHOW data_directory").fetchone() or [""]
    _control(data, "restart")
