"""`headrace publish` by itself, against real brokers and none, without a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.kafka import free_port
from headrace.mqtt import MqttBroker, mosquitto
from tests.support.mqtt_fixture import Subscriber
from tests.support.service_process import until


def publish(port: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "publish", "--mqtt", f"127.0.0.1:{port}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.skipif(mosquitto() is None, reason="mosquitto is not installed (apt-get install mosquitto)")
def test_everything_is_acknowledged_and_reaches_a_subscriber(tmp_path: Path):
    broker = MqttBroker(tmp_path, use="mosquitto").start()
    try:
        subscriber = Subscriber(broker.port, "te/#")
        ran = publish(broker.port, "--seconds", "3")
        published = int(ran.stdout.split()[1]) if ran.returncode == 0 else 0
        until(lambda: len(subscriber.got) >= published, "all that was acknowledged reaches the subscriber")
        subscriber.close()
    finally:
        broker.kill()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == f"published {len(subscriber.got)} messages, 0 without acknowledgement"
    assert "\x1b" not in ran.stdout + ran.stderr
    processor = [json.loads(payload) for topic, payload, _ in subscriber.got if topic == "te/device/cpu///m/usage"]
    assert processor
    assert all({"time", "user", "system", "idle"} == set(one) for one in processor)


def test_a_broker_that_speaks_only_an_older_version(tmp_path: Path):
    broker = MqttBroker(tmp_path, use="amqtt").start()
    try:
        ran = publish(broker.port, "--seconds", "2", "--protocol", "3.1.1")
    finally:
        broker.kill()
    assert ran.returncode == 0, ran.stderr
    assert ", 0 without acknowledgement" in ran.stdout


def test_without_a_broker_it_fails_and_says_so():
    port = free_port()
    ran = publish(port, "--patience", "1")
    assert ran.returncode == 1
    assert f"127.0.0.1:{port}" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("place", ["nohost", "host:", ":1883", "host:port"])
def test_a_place_that_is_none_is_wrong_usage(place: str):
    assert CliRunner().invoke(app, ["publish", "--mqtt", place]).exit_code == 2
