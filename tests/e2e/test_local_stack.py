"""The local stack as a user has it: `headrace up`, one measurement from MQTT to SQLite, and an end without remains.

The usual ports are taken by the test, so that the stack must find others.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

from headrace.endpoints import Endpoints
from headrace.ports import is_free
from headrace.services import USUAL_PORTS, answers
from headrace.stack import LocalStack, recorded
from headrace.supervisor import ServiceDied, session
from tests.support.patience import PATIENCE

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(600)]

SERVICES = {"kafka", "mqtt", "bridge", "streams", "api", "spark"}


@dataclass
class Home:
    """A folder of a stack, and the command line used on it."""

    folder: Path

    def run(self, command: str, *options: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "headrace", command, "--home", str(self.folder), *options]
        return subprocess.run(line, capture_output=True, text=True, timeout=seconds * PATIENCE, check=False)

    def up(self) -> None:
        ran = self.run("up", "--detach")
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return found

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints.load(self.folder / "stack.json")

    def is_up(self, pid: int) -> bool:
        """Whether this process, and not one before it, has all ready."""
        return (self.folder / "lock").read_text() == str(pid) and (self.folder / "stack.json").exists()

    def locked(self) -> bool:
        with (self.folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def values(self) -> list[float]:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self.folder / "spark" / "headrace.db")) as db:
            return [row[0] for row in db.execute("SELECT value FROM measurements ORDER BY value")]
        return []


def until(condition: Callable[[], Any], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds * PATIENCE} s: {what}"
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def taken() -> Iterator[set[int]]:
    """The usual ports, but for those that somebody else has now, and may give back."""
    ports: set[int] = set()
    with ExitStack() as held:
        for port in USUAL_PORTS.values():
            server = held.enter_context(socket.socket())
            with suppress(OSError):
                server.bind(("127.0.0.1", port))
                server.listen()
                ports.add(port)
        yield ports


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    one = Home(tmp_path / "home")
    yield one
    one.run("down")


def publish(endpoints: Endpoints, value: float) -> None:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="e2e")
    client.connect(endpoints.mqtt_host, endpoints.mqtt_port)
    client.loop_start()
    try:
        sent = client.publish("te/device/main///m/test", json.dumps({"value": value}), qos=1)
        sent.wait_for_publish(20 * PATIENCE)
        assert sent.is_published()
    finally:
        client.disconnect()
        client.loop_stop()


def remains(status: dict[str, Any]) -> list[str]:
    """What is left of the stack that had this status: processes of its sessions, ports that are taken."""
    found = []
    for service in status["services"]:
        found += [f"{service['name']}: process {pid}" for pid in session(service["pid"])]
        port = int(service["address"].rpartition(":")[2])
        found += [] if is_free(port) else [f"{service['name']}: port {port}"]
    return found


def processes_of(folder: Path) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(folder) in line and "pytest" not in line]


def test_up_carries_a_measurement_to_the_store_and_down_leaves_nothing(home: Home, taken: set[int]) -> None:
    home.up()
    until(lambda: home.run("status").returncode == 0, "all services say that they are ready")
    status = home.status()
    assert {service["name"] for service in status["services"]} == SERVICES
    ports = {int(service["address"].rpartition(":")[2]) for service in status["services"]}
    assert not ports & taken
    publish(home.endpoints, 20.5)
    until(lambda: home.values() == [20.5], "the measurement in the store")

    again = home.run("up")
    assert (again.returncode, "running" in again.stderr) == (3, True)
    assert home.run("reset").returncode == 3

    assert home.run("down").returncode == 0
    assert remains(status) == []
    assert processes_of(home.folder) == []
    assert not home.locked()
    assert home.run("status").returncode == 4


def test_after_kill_9_the_state_is_good_and_the_death_of_a_service_stops_the_stack(home: Home) -> None:
    home.up()
    publish(home.endpoints, 1.5)
    until(lambda: home.values() == [1.5], "the first measurement")
    status = home.status()
    os.kill(status["pid"], signal.SIGKILL)
    until(lambda: remains(status) == [] and processes_of(home.folder) == [], "the end of all processes")
    assert not home.locked()

    command = [sys.executable, "-m", "headrace", "up", "--home", str(home.folder)]
    stack = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: home.is_up(stack.pid) or stack.poll() is not None, "the second start", 200)
        publish(home.endpoints, 2.5)
        until(lambda: home.values() == [1.5, 2.5], "both measurements")
        status = home.status()
        os.kill(next(one["pid"] for one in status["services"] if one["name"] == "bridge"), signal.SIGKILL)
        _, errors = stack.communicate(timeout=600)
    finally:
        stack.terminate()
        stack.wait(300)
    assert stack.returncode == 1
    assert "bridge was ended by SIGKILL" in errors
    assert '"event": "started"' in errors
    assert remains(status) == []
    assert home.run("reset").returncode == 0
    assert not home.folder.exists()


def test_one_service_can_be_started_again_at_its_port(tmp_path: Path) -> None:
    with LocalStack(tmp_path / "home", without=("spark", "api")) as stack:
        endpoints = stack.start()
        for name in ("bridge", "kafka"):
            before = stack.processes[name]
            os.kill(before, signal.SIGKILL)
            with pytest.raises(ServiceDied, match=f"{name} was ended by SIGKILL"):
                until(lambda: stack.check(), "its end")
            stack.restart(name)
            assert stack.processes[name] != before
            stack.check()
        until(lambda: answers(f"{endpoints.bridge_url}/readyz"), "the bridge and Kafka together")
        status = {"services": [{"name": k.name, "pid": k.pid, "address": k.address} for k in recorded(stack.files)]}
        assert len(status["services"]) == 4
    assert remains(status) == []
