"""Lease stores over real servers for the contract suite: what each can do besides the port itself."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from headrace.kafka import free_port
from headrace_capacity.coordinator import Coordinator, CoordinatorStore, monotonic_ms
from headrace_capacity.postgres import PostgresStore
from headrace_core.capacity.errors import LeaseStoreUnavailable, UnknownResource
from headrace_core.capacity.memory_store import MemoryStore
from tests.support.postgres import running
from tests.support.streams_worker import until

TOKEN = "a token"


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


@contextmanager
def postgres() -> Iterator[Backend]:
    with running() as server:
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
def container(image: str, command: str, inside: int, answers: Callable[[int], bool]) -> Iterator[tuple[Any, int]]:
    """A container with its port `inside` at a free one of the loopback address, once it answers there."""
    from testcontainers.core.container import DockerContainer

    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    port = free_port()
    made = DockerContainer(image).with_command(command)
    made.ports[inside] = ("127.0.0.1", port)  # type: ignore[assignment]
    with made:
        until(lambda: answers(port), f"{image} answers")
        yield made, port


@contextmanager
def redis() -> Iterator[Backend]:
    """A Redis container without persistence, so that a restart forgets everything."""
    from headrace_capacity.redis import RedisStore

    def url(port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    def answers(port: int) -> bool:
        asked = RedisStore(url(port))
        try:
            return _knows_nothing(asked)
        finally:
            asked.close()

    clients: list[RedisStore] = []
    restarts: list[float] = []
    command = "redis-server --save '' --appendonly no --protected-mode no"
    with container("redis:7", command, 6379, answers) as (server, port):

        def client() -> RedisStore:
            clients.append(RedisStore(url(port), cold=not restarts))
            return clients[-1]

        def restart() -> None:
            restarts.append(time.monotonic())
            server.get_wrapped_container().restart(timeout=1)
            until(lambda: answers(port), "Redis answers again")

        try:
            yield Backend(client, restart, remembers=False, nowhere=lambda at: RedisStore(url(at)))
        finally:
            for each in clients:
                each.close()


@contextmanager
def azurite() -> Iterator[str]:
    """The connection string of an Azurite container, with the account that all Azurites have."""
    command = "azurite-blob --blobHost 0.0.0.0 --inMemoryPersistence --skipApiVersionCheck --silent"
    with container("mcr.microsoft.com/azure-storage/azurite", command, 10000, _speaks_http) as (_, port):
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
