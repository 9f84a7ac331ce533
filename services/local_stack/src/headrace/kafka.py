"""Apache Kafka 4.4.0, one KRaft node, as a child process from its published jars (architecture.md, local stack).

The data folder survives `stop` and `kill`: a server started again in it has all that it had acknowledged and flushed.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient

from headrace import child_exec
from headrace.jars import kafka_jars
from headrace.java import java
from headrace.ports import free_port as free_port
from headrace_core.errors import HeadraceError

MESSAGE_BYTES = 9_000_000  # above the 8 MiB record batches of the changelogs
READY_S = 180

LOG4J = """<Configuration status="ERROR">
  <Appenders><Console name="out"><PatternLayout pattern="[%d] %p %m (%c)%n"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


class KafkaNotReady(HeadraceError):
    """The broker ended or did not answer in time; the message has the end of its log."""

    code = "kafka_not_ready"
    retry = True


class KafkaServer:
    """One broker at `bootstrap`. `port` 0: a free one is chosen, and kept for later starts of this object.

    `properties` go before the launcher's own; `listeners` (name: protocol and port) come beside `bootstrap`.
    """

    def __init__(
        self, data_dir: Path, port: int = 0, heap: str = "512m", controller_port: int = 0, *,
        properties: Mapping[str, str] | None = None, listeners: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:  # fmt: skip
        self._more = dict(properties or {})
        self._listeners = dict(listeners or {})
        self._dir = data_dir.absolute()
        self._heap = heap
        self.port = port or free_port()
        self._controller_port = controller_port or free_port()
        self.log_file = self._dir / "kafka.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Address for clients, `host:port`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> KafkaServer:
        """Start the broker and wait until it answers. Raises KafkaNotReady, JarsMissing, NoJava."""
        command = self.prepare()
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                child_exec.command(command, interrupt="ignore"),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._dir,
            )
        self._wait_ready()
        return self

    def prepare(self) -> list[str]:
        """Write the configuration, format the storage if it is new; returns the command that runs the broker.

        Raises KafkaNotReady, JarsMissing, NoJava.
        """
        self._dir.mkdir(parents=True, exist_ok=True)
        (self._dir / "server.properties").write_text(self._properties())
        (self._dir / "log4j2.xml").write_text(LOG4J)
        if not (self._dir / "data" / "meta.properties").exists():
            self._format()
        return self._command("kafka.Kafka", f"{self._dir}/server.properties")

    def stop(self, timeout_s: float = 20) -> None:
        """SIGTERM, and SIGKILL if that takes longer than `timeout_s`."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL, 20)

    def _end(self, with_signal: signal.Signals, timeout_s: float) -> None:
        if self.process is None:
            return
        self.process.send_signal(with_signal)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _command(self, main: str, *arguments: str) -> list[str]:
        options = [f"-Xmx{self._heap}", f"-Xms{self._heap}", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]
        options.append(f"-Dlog4j2.configurationFile={self._dir}/log4j2.xml")
        return [java(), *options, "-cp", f"{kafka_jars()}/*", main, *arguments]

    def _format(self) -> None:
        cluster = uuid.uuid5(uuid.NAMESPACE_URL, str(self._dir))
        command = self._command("kafka.tools.StorageTool", "format", "--standalone", "-t", _base64_uuid(cluster))
        ran = subprocess.run(
            [*command, "-c", f"{self._dir}/server.properties"], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise KafkaNotReady(f"the storage could not be formatted: {(ran.stdout + ran.stderr)[-800:]}")

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        often = {"socket.timeout.ms": 1000, "reconnect.backoff.max.ms": 500}
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **often})
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                break
            with contextlib.suppress(Exception):
                if admin.list_topics(timeout=1).brokers:
                    return
            time.sleep(0.1)
        tail = self.log_file.read_bytes()[-2000:].decode(errors="replace")
        self.kill()
        raise KafkaNotReady(f"Kafka did not get ready; the end of its log:\n{tail}")

    def _properties(self) -> str:
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": f"{self._dir}/data",
            "num.partitions": 4,
            "default.replication.factor": 1,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "message.max.bytes": MESSAGE_BYTES,
            "replica.fetch.max.bytes": MESSAGE_BYTES,
            "socket.request.max.bytes": 4 * MESSAGE_BYTES,
            "log.segment.bytes": 64 * 1024 * 1024,
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        }
        for name, (protocol, port) in self._listeners.items():
            for key in ("listeners", "advertised.listeners"):
                settings[key] = f"{settings[key]},{name}://127.0.0.1:{port}"
            settings["listener.security.protocol.map"] = (
                f"{settings['listener.security.protocol.map']},{name}:{protocol}"
            )
        return "".join(f"{name}={value}\n" for name, value in (settings | self._more).items())


def _base64_uuid(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=").replace("-", "A")  # a leading dash is an option
