"""A real MQTT broker as a child process: mosquitto if it is installed, else amqtt (architecture.md, local stack).

mosquitto keeps sessions, queues and retained messages in the data folder; a broker stopped and started again in it has
them. After `kill` it has what it had saved (every second, or when asked by SIGUSR1): `save` makes that now. amqtt
speaks MQTT 3.1.1 only and keeps nothing over a restart: good for a first look. `protocol` says which it is.
"""

from __future__ import annotations

import getpass
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from headrace import child_exec
from headrace.kafka import free_port
from headrace_core.errors import HeadraceError

READY_S = 120
STOP_S = 10
QUEUED_MESSAGES = 1_000_000
PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/opt/homebrew/bin", "/usr/local/opt/mosquitto/sbin")


class MqttNotReady(HeadraceError):
    """The broker ended or did not answer in time; the message has the end of its log."""

    code = "mqtt_not_ready"
    retry = True


class NoMqttBroker(HeadraceError):
    """Neither mosquitto nor amqtt is installed."""

    code = "no_mqtt_broker"


class MqttBroker:
    """One broker at 127.0.0.1:`port`. `port` 0: a free one is chosen, and kept for later starts of this object.

    `options`: further lines of mosquitto's configuration. `use`: "mosquitto", "amqtt" or "" for whichever is there.
    """

    def __init__(self, data_dir: Path, port: int = 0, *, options: tuple[str, ...] = (), use: str = "") -> None:
        self._dir = data_dir.absolute()
        self.port = port or free_port()
        self._options = options
        found = mosquitto() if use in ("", "mosquitto") else None
        if found is None and (use == "mosquitto" or importlib.util.find_spec("amqtt") is None):
            raise NoMqttBroker("install mosquitto (apt-get install mosquitto, brew install mosquitto) or amqtt")
        self._mosquitto = found
        self.log_file = self._dir / "mqtt.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def protocol(self) -> str:
        """The newest MQTT version it speaks, as HEADRACE_BRIDGE_MQTT_VERSION wants it."""
        return "5" if self._mosquitto else "3.1.1"

    def start(self) -> MqttBroker:
        """Start the broker and wait until it takes connections. Raises MqttNotReady."""
        command = self.prepare()
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                child_exec.command(command, interrupt="ignore"), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                cwd=self._dir,
            )  # fmt: skip
        self._wait_ready()
        return self

    def stop(self) -> None:
        """SIGTERM: mosquitto saves its state; SIGKILL if that takes longer than 10 s."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def save(self) -> None:
        """Ask mosquitto to write its state to disk now."""
        if self.process is not None and self._mosquitto:
            self.process.send_signal(signal.SIGUSR1)

    def _end(self, with_signal: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(with_signal)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def prepare(self) -> list[str]:
        """Write the configuration; returns the command that runs the broker."""
        self._dir.mkdir(parents=True, exist_ok=True)
        if self._mosquitto:
            path = self._dir / "mosquitto.conf"
            path.write_text(self._mosquitto_config())
            return [self._mosquitto, "-c", str(path)]
        path = self._dir / "amqtt.yaml"
        path.write_text(self._amqtt_config())
        return [sys.executable, "-m", "amqtt.scripts.broker_script", "-c", str(path)]

    def _mosquitto_config(self) -> str:
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {self._dir}/",
            "autosave_interval 1",
            f"max_queued_messages {QUEUED_MESSAGES}",
            "max_queued_bytes 0",
            f"user {getpass.getuser()}",
            "log_dest stderr",
            "log_type error",
            "log_type warning",
            *self._options,
        ]
        return "\n".join(lines) + "\n"

    def _amqtt_config(self) -> str:
        return (
            "listeners:\n  default:\n    type: tcp\n"
            f"    bind: 127.0.0.1:{self.port}\n"
            "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
        )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        tail = self.log_file.read_bytes()[-2000:].decode(errors="replace")
        self.kill()
        raise MqttNotReady(f"the MQTT broker did not get ready; the end of its log:\n{tail}")


def mosquitto() -> str | None:
    """Path of mosquitto's program, None if it is not installed."""
    return shutil.which("mosquitto") or next(
        (f"{place}/mosquitto" for place in PLACES if Path(place, "mosquitto").is_file()), None
    )
