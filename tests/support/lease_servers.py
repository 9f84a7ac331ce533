"""Lease stores over real servers for the contract suite: what each can do besides the port itself."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from headrace_capacity.coordinator import Coordinator, CoordinatorStore, monotonic_ms
from headrace_capacity.postgres import PostgresStore
from headrace_core.capacity.errors import LeaseStoreUnavailable, UnknownResource
from headrace_core.capacity.memory_store import MemoryStore
from tests.support.postgres import binaries

TOKEN = "a token"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Backend:
    """`client()`: one more client of the same server. `restart()`: the server ends and comes back. `remembers`: with
    its state; else it learns. `nowhere()`: a client of a server that accepts connections and never answers."""

    client: Callable[[], Any]
    restart: Callable[[], None]
    remembers: bool
    nowhere: Callable[[int], Any] | None = None


@contextmanager
def black_hole() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as hole:
        yield int(hole.getsockname()[1])


@contextmanager
def memory() -> Iterator[Backend]:
    store = MemoryStore(monotonic_ms)
    yield Backend(lambda: store, store.restart, remembers=False)


@contextmanager
def coordinator() -> Iterator[Backend]:
    port = free_port()
    running = [Coordinator(TOKEN, port=port, cold=True).start()]
    clients: list[CoordinatorStore] = []

    def client() -> CoordinatorStore:
        clients.append(CoordinatorStore(f"tcp://127.0.0.1:{port}", TOKEN))
        return clients[-1]

    def restart() -> None:
        running.pop().stop()
        running.append(Coordinator(TOKEN, port=port).start())

    try:
        yield Backend(client, restart, remembers=False, nowhere=lambda at: CoordinatorStore(f"127.0.0.1:{at}", TOKEN))
    finally:
        for each in clients:
            each.close()
        running.pop().stop()


@dataclass
class PostgresServer:
    url: str
    restart: Callable[[], None]


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A real server with durable commits (fsync as it comes), which can be killed and started again."""
    where = binaries()
    if where is None:
        raise FileNotFoundError("no PostgreSQL server is installed")
    folder = Path(tempfile.mkdtemp(prefix="headrace-leases-"))
    user = {"user": "postgres"} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "postgres")
    port, data = free_port(), folder / "data"
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"

    def run(*command: str) -> None:
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **user)  # type: ignore[call-overload]

    def control(*words: str) -> None:
        run(str(where / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log"), *words)

    def restart() -> None:
        control("-m", "immediate", "stop")
        control("-o", options, "start")

    try:
        run(str(where / "initdb"), "-D", str(data), "-U", "headrace", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
        control("-o", options, "start")
        try:
            yield PostgresServer(f"postgresql://headrace@127.0.0.1:{port}/postgres", restart)
        finally:
            control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[Backend]:
    with postgres_server() as server:
        clients: list[PostgresStore] = []

        def client() -> PostgresStore:
            clients.append(PostgresStore(server.url))
            return clients[-1]

        try:
            yield Backend(
                client,
                server.restart,
                remembers=True,
                nowhere=lambda at: PostgresStore(f"postgresql://headrace@127.0.0.1:{at}/postgres"),
            )
        finally:
            for each in clients:
                each.close()


@contextmanager
def redis() -> Iterator[Backend]:
    """A Redis container without persistence, so that a restart forgets everything."""
    from testcontainers.core.container import DockerContainer

    from headrace_capacity.redis import RedisStore

    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    port = free_port()
    container = DockerContainer("redis:7").with_command("redis-server --save '' --appendonly no --protected-mode no")
    container.ports[6379] = ("127.0.0.1", port)  # type: ignore[assignment]
    clients: list[RedisStore] = []
    restarts: list[float] = []

    def client() -> RedisStore:
        clients.append(RedisStore(f"redis://127.0.0.1:{port}/0", cold=not restarts))
        return clients[-1]

    def answers() -> None:
        deadline = time.monotonic() + 60
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", port)):
                assert time.monotonic() < deadline, "Redis does not listen"
                time.sleep(0.1)
        asked = RedisStore(f"redis://127.0.0.1:{port}/0")
        while not _knows_nothing(asked):
            assert time.monotonic() < deadline, "Redis does not answer"
            time.sleep(0.1)
        asked.close()

    def restart() -> None:
        restarts.append(time.monotonic())
        container.get_wrapped_container().restart(timeout=1)
        answers()

    with container:
        answers()
        try:
            yield Backend(client, restart, remembers=False, nowhere=lambda at: RedisStore(f"redis://127.0.0.1:{at}/0"))
        finally:
            for each in clients:
                each.close()


@contextmanager
def azurite() -> Iterator[str]:
    """The connection string of an Azurite container, with the account that all Azurites have."""
    from testcontainers.core.container import DockerContainer

    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    port = free_port()
    container = DockerContainer("mcr.microsoft.com/azure-storage/azurite")
    container.with_command("azurite-blob --blobHost 0.0.0.0 --inMemoryPersistence --skipApiVersionCheck --silent")
    container.ports[10000] = ("127.0.0.1", port)  # type: ignore[assignment]
    with container:
        deadline = time.monotonic() + 60
        while not _speaks_http(port):
            assert time.monotonic() < deadline, container.get_logs()
            time.sleep(0.1)
        yield (
            "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT5"
            "0uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
            f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
        )


def _speaks_http(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as link:
            link.sendall(b"GET /devstoreaccount1?comp=list HTTP/1.0\r\n\r\n")
            return link.recv(4) == b"HTTP"
    except OSError:
        return False


def _knows_nothing(store: Any) -> bool:
    """False while the server does not answer."""
    try:
        store.status("nothing")
    except UnknownResource:
        return True
    except LeaseStoreUnavailable:
        return False
    raise AssertionError("a fresh store knows no resource")


def terminate_backends(url: str) -> int:
    """End all other sessions of the database's lease clients, as a failover does; how many."""
    with psycopg.connect(url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'headrace-capacity'"
        ).fetchone()
    return int(ended[0]) if ended else 0
