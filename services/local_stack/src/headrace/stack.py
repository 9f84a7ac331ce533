"""The local stack: Kafka, MQTT broker, bridge, stream processor, status API and Spark writer, as child processes, and
the coordinator of the datastore's capacity as a thread.

Theory: one folder, one stack. `lock` in the folder is held (flock) as long as the stack's process lives, and by nobody
else; it cannot be forgotten, because it ends with the process. `services.json` names the children, `stack.json` is
there only while all are ready. All state is in the folder, so a stack started again in it goes on where it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import msgspec
from confluent_kafka.admin import AdminClient

from headrace import leasing, services, topics
from headrace.endpoints import ARCHIVE, Endpoints
from headrace.kafka import KafkaServer
from headrace.mqtt import MqttBroker
from headrace.ports import Ports
from headrace.services import Service, Setup
from headrace.signals import shielded
from headrace.supervisor import Child, ServiceDied, Supervisor, end_strays, started_at, tail
from headrace_capacity.coordinator import Coordinator
from headrace_core.errors import HeadraceError

PREFIX = "headrace."
READY_S = 120.0
PORT_TRIES = 3
PORT_TAKEN = "ddress already in use"
POLL_S = 0.05
Progress = Callable[[str, str], None]


class AlreadyRunning(HeadraceError):
    """Another process has a stack in this folder. `pid` is that process."""

    code = "already_running"

    def __init__(self, home: Path, pid: int) -> None:
        super().__init__(f"a stack is running in {home} already (process {pid}); `headrace down` stops it")
        self.home, self.pid = home, pid


class NotReady(HeadraceError):
    """A service did not get ready in time."""

    code = "not_ready"
    retry = True


class Known(msgspec.Struct, frozen=True):
    """A child as `services.json` has it. `began` is its start, in seconds since the epoch."""

    name: str
    pid: int
    began: float
    address: str
    log: str


@dataclass(frozen=True)
class Files:
    """What is where in a stack's folder."""

    home: Path

    @property
    def lock(self) -> Path:
        """Held while a stack runs; its text is the pid of the holder."""
        return self.home / "lock"

    @property
    def endpoints(self) -> Path:
        """`Endpoints`, while all is ready."""
        return self.home / "stack.json"

    @property
    def services(self) -> Path:
        """The children, as a list of `Known`."""
        return self.home / "services.json"

    @property
    def logs(self) -> Path:
        """A log file for each service."""
        return self.home / "logs"


class LocalStack:
    """`start`, then `check` again and again, then `stop`. As a context manager it always stops.

    `home`: the folder of the state. `capacity_per_s`: rows per second into the store. `timeout_ms`: when batching
    closes a batch; `batching`: further settings of it (batching.md 3). `trigger_ms`: how often Spark looks for batches.
    `without`: names of services to leave out. `archive`: there is a second job, which writes into the same datastore
    within the same capacity; `start_archive` starts it.
    """

    def __init__(
        self,
        home: Path,
        *,
        capacity_per_s: int = 200,
        timeout_ms: int = 1000,
        trigger_ms: int = 1000,
        without: tuple[str, ...] = (),
        batching: Mapping[str, int] | None = None,
        archive: bool = False,
    ) -> None:
        self.files = Files(home.absolute())
        self._capacity, self._timeout, self._trigger = capacity_per_s, timeout_ms, trigger_ms
        self._without, self._archive = without, archive
        self._batching = dict(batching or {})
        self._supervisor: Supervisor | None = None
        self._services: dict[str, Service] = {}
        self._ports: Ports | None = None
        self._lock: TextIO | None = None
        self._coordinator: Coordinator | None = None
        self._setup: Setup | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def processes(self) -> dict[str, int]:
        """Name to pid of the children."""
        children = self._supervisor.children if self._supervisor else {}
        return {name: child.pid for name, child in children.items()}

    def start(self, progress: Progress = lambda _, __: None) -> Endpoints:
        """Start everything and wait until all is ready; `progress` gets (service, what happens).

        Raises AlreadyRunning, ServiceDied, NotReady, NoJava, JarsMissing, NoMqttBroker; nothing is left running then.
        """
        self._lock = acquire(self.files)
        try:
            for _ in range(PORT_TRIES - 1):
                try:
                    return self._start(progress)
                except (ServiceDied, OSError) as error:
                    if not _port_taken(error):
                        raise
                    name = error.name if isinstance(error, ServiceDied) else "capacity"
                    progress(name, "somebody else took its port meanwhile; once more with others")
                    self._stop_services()
            return self._start(progress)
        except BaseException:
            self.stop()
            raise

    def _start(self, progress: Progress) -> Endpoints:
        self.files.endpoints.unlink(missing_ok=True)
        end_strays((known.pid, known.began) for known in recorded(self.files))
        self._supervisor = Supervisor()
        setup, brokers = self._prepare(progress)
        self._coordinator = leasing.coordinate(self.files.home, setup.ports["capacity"])
        began = {service.name: self._launch(service, progress) for service in brokers}
        self._await(list(began), began, progress)
        made = topics.create(setup.kafka, setup.prefix, services.PARTITIONS)
        progress("kafka", f"{len(made)} topics made" if made else "topics are there")
        makers = {"spark": services.spark, "streams": services.streams, "bridge": services.bridge, "api": services.api}
        for name, make in makers.items():
            if name not in self._without:
                began[name] = self._launch(make(setup), progress)
        self._await([name for name in began if name in makers], began, progress)
        self._setup = setup
        endpoints = self._endpoints(setup)
        endpoints.save(self.files.endpoints)
        return endpoints

    def start_archive(self, progress: Progress = lambda _, __: None) -> None:
        """Start the second job, once, after `start`; it is not waited for. Raises as `start`."""
        if self._archive and self._setup is not None and ARCHIVE.service not in self.processes:
            self._launch(services.archive(self._setup), progress)

    def await_archive(self, turn: Callable[[], None]) -> None:
        """Wait until the second job, which was started, is ready; `turn` is called meanwhile. Raises as `start`, and
        what `turn` raises."""
        if not self._archive:
            return
        service, deadline = self._services[ARCHIVE.service], time.monotonic() + READY_S
        while not service.ready(self._running.children[service.name]):
            turn()
            self._still_hopeful([service.name], deadline)
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raise ServiceDied if a service ended by itself."""
        if self._supervisor is not None:
            self._supervisor.check()

    def restart(self, name: str) -> None:
        """Start one service again, whether it still runs or not, and wait until it is ready. Raises as `start`."""
        service, supervisor = self._services[name], self._running
        supervisor.stop([name], service.stop_s)
        self._launch(service, lambda _, __: None)
        deadline = time.monotonic() + READY_S
        while not service.ready(supervisor.children[name]):
            self._still_hopeful([name], deadline)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop all, the brokers last; release the lock. Afterwards no process and no port is left."""
        if self._lock is None:
            return
        with shielded():
            self._stop_services()
        self._lock.truncate(0)
        self._lock.close()
        self._lock = None

    def _stop_services(self) -> None:
        self.files.endpoints.unlink(missing_ok=True)
        if self._supervisor is not None:
            for rank in (1, 0):
                ranked = [service for service in self._services.values() if service.rank == rank]
                self._supervisor.stop([s.name for s in ranked], max((s.stop_s for s in ranked), default=0))
            self._supervisor.close()
            self._supervisor = None
            self.files.services.unlink(missing_ok=True)
        if self._coordinator is not None:
            self._coordinator.stop()
            self._coordinator = None
        if self._ports is not None:
            self._ports.close()
            self._ports = None

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise RuntimeError("the stack is not started")
        return self._supervisor

    def _prepare(self, progress: Progress) -> tuple[Setup, list[Service]]:
        progress("kafka", "preparing")
        self._ports = Ports(services.USUAL_PORTS)
        chosen = self._ports.of
        home = self.files.home
        mqtt = MqttBroker(home / "mqtt", chosen["mqtt"])
        kafka = KafkaServer(
            home / "kafka", chosen["kafka"], heap=services.KAFKA_HEAP, controller_port=chosen["kafka-controller"]
        )
        setup = Setup(
            home=home, prefix=PREFIX, ports=chosen, mqtt_protocol=mqtt.protocol, capacity_per_s=self._capacity,
            timeout_ms=self._timeout, trigger_ms=self._trigger, batching=self._batching,
        )  # fmt: skip
        return setup, [
            Service(
                name="kafka", argv=kafka.prepare(), ready=lambda _: _kafka_answers(setup.kafka), address=setup.kafka,
                rank=0,
            ),
            Service(
                name="mqtt", argv=mqtt.prepare(), ready=lambda _: services.listens(mqtt.port),
                address=f"127.0.0.1:{mqtt.port}", rank=0, memory_bytes=services.DATA_BYTES,
            ),
        ]  # fmt: skip

    def _launch(self, service: Service, progress: Progress) -> float:
        progress(service.name, "starting")
        self._services[service.name] = service
        self._running.start(
            service.name, service.argv, log=self.files.logs / f"{service.name}.log", cwd=self.files.home,
            env=services.environment(service), memory_bytes=service.memory_bytes,
        )  # fmt: skip
        self._record()
        return time.monotonic()

    def _await(self, names: list[str], began: dict[str, float], progress: Progress) -> None:
        waiting, deadline = list(names), time.monotonic() + READY_S
        while waiting:
            for name in list(waiting):
                if self._services[name].ready(self._running.children[name]):
                    waiting.remove(name)
                    progress(name, f"ready after {time.monotonic() - began[name]:.1f} s")
            self._still_hopeful(waiting, deadline)
            time.sleep(POLL_S)

    def _still_hopeful(self, waiting: list[str], deadline: float) -> None:
        self.check()
        if waiting and time.monotonic() > deadline:
            log = tail(self._running.children[waiting[0]])
            raise NotReady(f"{waiting[0]} did not get ready within {READY_S:.0f} s; the end of its log:\n{log}")

    def _record(self) -> None:
        known = [
            Known(child.name, child.pid, started_at(child.pid), self._services[child.name].address, str(child.log))
            for child in self._running.children.values()
        ]
        draft = self.files.services.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(known))
        draft.replace(self.files.services)

    def _endpoints(self, setup: Setup) -> Endpoints:
        return Endpoints(
            kafka=setup.kafka, prefix=setup.prefix, mqtt_host="127.0.0.1", mqtt_port=setup.ports["mqtt"],
            mqtt_protocol=setup.mqtt_protocol, bridge_url=setup.url("bridge"), streams_url=setup.url("streams"),
            api_url=setup.url("api"), spark_url=setup.url("spark"), database=setup.database, logs=self.files.logs,
            capacity_per_s=setup.capacity_per_s, cost=services.COST, timeout_ms=setup.timeout_ms,
            lease_store=setup.lease_store, lease_token_file=leasing.token_file(setup.home), resource=leasing.RESOURCE,
            archive_url=setup.url("archive") if self._archive else "",
        )  # fmt: skip


def acquire(files: Files) -> TextIO:
    """Take the folder's lock; it is held until the returned file is closed. Raises AlreadyRunning."""
    files.home.mkdir(parents=True, exist_ok=True)
    lock = files.lock.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise AlreadyRunning(files.home, holder(files) or 0) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def holder(files: Files) -> int | None:
    """Pid of the process that has the lock, None if nobody has it."""
    try:
        with files.lock.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(lock.read().strip() or 0)
    except FileNotFoundError:
        return None
    return None


def recorded(files: Files) -> list[Known]:
    """The children of the stack that runs, or ran last and could not clean up."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(files.services.read_bytes(), type=list[Known])
    return []


def _port_taken(error: ServiceDied | OSError) -> bool:
    if isinstance(error, ServiceDied):
        return PORT_TAKEN in error.log_tail
    return error.errno == errno.EADDRINUSE


def _kafka_answers(bootstrap: str) -> bool:
    with contextlib.suppress(Exception):
        return bool(_admin(bootstrap).list_topics(timeout=1).brokers)
    return False


@lru_cache(maxsize=1)
def _admin(bootstrap: str) -> AdminClient:
    """One client for all questions: a new one would have to connect within the time of each."""
    often = {"socket.timeout.ms": 1000, "reconnect.backoff.max.ms": 500}
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **often})


__all__ = ["AlreadyRunning", "Child", "Files", "Known", "LocalStack", "NotReady", "ServiceDied"]
