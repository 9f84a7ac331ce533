"""The processes that are measured: how each is started, when it is ready, how many messages it has acknowledged."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import paho.mqtt.client as paho
import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition
from paho.mqtt.enums import CallbackAPIVersion

from bench.bridge.peers import client_id
from headrace.kafka import free_port
from headrace.mqtt import MqttBroker

PATIENCE_S = 600.0
STEP_S = 0.2
"""Between two questions: each costs the bridge a millisecond or two of the CPU time that is measured."""
PEER_STARTED_S = 0.1  # CPU; what it takes to import paho and confluent-kafka


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(STEP_S)


@dataclass
class Places:
    """Where everything is."""

    directory: Path
    mqtt: MqttBroker
    kafka: str
    prefix: str

    @property
    def mqtt_port(self) -> int:
        """Of mosquitto."""
        return self.mqtt.port

    def signal_mqtt(self, number: signal.Signals) -> None:
        """Stop mosquitto, or let it go on."""
        assert self.mqtt.process is not None
        self.mqtt.process.send_signal(number)


@dataclass
class Candidate:
    """One of them; `module` None: the bridge."""

    places: Places
    name: str
    profile: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    _log_from: int = 0
    _had: int = 0

    def start(self) -> None:
        """Start anew; its count begins at 0."""
        at = self.places
        self.port = free_port()
        self._count_file.write_text("0")
        self._subscribed_file.unlink(missing_ok=True)
        self._had = self._in_kafka()
        values = {
            "KAFKA": at.kafka, "PREFIX": at.prefix, "MQTT_PORT": str(at.mqtt_port), "HTTP_PORT": str(self.port),
            "STATE_DIR": str(at.directory / "state"), "CLIENT_ID": client_id(self.name), "OUTBOUND": "false",
            **self.settings,
        }  # fmt: skip
        env = {**os.environ, **{f"HEADRACE_BRIDGE_{name}": value for name, value in values.items()}}
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", *self._command()], env=env, stderr=log)
        if self.name == "bridge":
            until(lambda: self._get("/healthz") != "", "the bridge answers")

    def _command(self) -> list[str]:
        at = self.places
        if self.name != "bridge":
            topic, kafka = f"{at.prefix}raw", at.kafka
            return ["bench.bridge.peers", self.name, str(at.mqtt_port), kafka, topic, str(self._count_file)]
        return ["headrace_bridge"] if self.profile is None else ["bench.bridge.profiled", str(self.profile)]

    @property
    def _log(self) -> Path:
        return self.places.directory / f"{self.name}.log"

    @property
    def _count_file(self) -> Path:
        return self.places.directory / f"{self.name}.count"

    @property
    def _subscribed_file(self) -> Path:
        return self._count_file.with_suffix(".subscribed")

    def _get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def wait_ready(self) -> None:
        """Until it is subscribed."""
        if self.name == "bridge":
            until(lambda: self._get("/readyz") != "", f"{self.name} ready")
        else:
            until(self._subscribed_file.exists, f"{self.name} subscribed")

    def wait_blocked(self) -> None:
        """Until it has started and does nothing but wait for a broker that does not answer."""
        if self.name == "bridge":
            until(
                lambda: b'"connection lost"' in self._log.read_bytes()[self._log_from :], "the bridge tries to connect"
            )
            return
        until(lambda: self.cpu_s > PEER_STARTED_S, f"{self.name} has loaded its modules")
        time.sleep(3.0)

    def metric(self, name: str) -> float:
        """A metric of the bridge."""
        with contextlib.suppress(StopIteration):
            lines = self._get("/metrics").splitlines()
            return float(next(line.split()[1] for line in lines if line.startswith(f"headrace_bridge_{name} ")))
        return 0.0

    @property
    def acknowledged(self) -> int:
        """So far, in this process. The bridge is not asked, since answers cost it time: Kafka is."""
        if self.name == "bridge":
            return self._in_kafka() - self._had
        return int(self._count_file.read_text() or 0)

    def _in_kafka(self) -> int:
        reader = Consumer({"bootstrap.servers": self.places.kafka, "group.id": "bench", "log_level": 0})
        places = [TopicPartition(f"{self.places.prefix}raw", partition) for partition in range(4)]
        deadline = time.monotonic() + PATIENCE_S
        try:
            while True:
                try:
                    return sum(reader.get_watermark_offsets(place, timeout=30)[1] for place in places)
                except KafkaException:  # a topic that was just made has no leader yet
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(STEP_S)
        finally:
            reader.close()

    @property
    def _stat(self) -> psutil.Process:
        assert self.process is not None
        return psutil.Process(self.process.pid)

    @property
    def cpu_s(self) -> float:
        """CPU time, all threads."""
        times = self._stat.cpu_times()
        return float(times.user + times.system)

    @property
    def memory_mib(self) -> float:
        """Resident memory."""
        return float(self._stat.memory_info().rss / 2**20)

    def forget(self) -> None:
        """End its session: else mosquitto would go on to queue each message for it, at the cost of who comes next."""
        ended = threading.Event()
        client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id(self.name), clean_session=True, protocol=paho.MQTTv311
        )  # fmt: skip
        client.on_connect = lambda *_: ended.set()
        client.connect("127.0.0.1", self.places.mqtt_port)
        client.loop_start()
        if not ended.wait(PATIENCE_S):
            raise TimeoutError("the session ends")
        client.disconnect()
        client.loop_stop()

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL if that does not help."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
