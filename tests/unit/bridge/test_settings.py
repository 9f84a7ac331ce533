"""A wrong setting is found at start and named."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace_bridge.__main__ import kafka_base, target_of, topic_limits
from headrace_bridge.kafka import Topics
from headrace_bridge.settings import BridgeSettings, filter_problem, in_one_line
from headrace_bridge.subscriptions import FilterMemory
from headrace_core.errors import ConfigError

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize("good", ["te/#", "#", "+/a", "/", "a b/+", "$share/g/te/#"])
def test_filters_that_may_be_subscribed(good: str) -> None:
    assert filter_problem(good) == ""


@pytest.mark.parametrize("bad", ["", "$SYS/#", "a#", "#/a", "a/b+", "a\0", "x" * 65_536, "$share/g", "$share//a"])
def test_filters_that_may_not(bad: str) -> None:
    assert filter_problem(bad) != ""


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BRIDGE_FILTERS", '{"te/#": 2, "x": 0}')
    assert BridgeSettings().subscriptions == {"te/#": 2, "x": 0}
    monkeypatch.setenv("HEADRACE_BRIDGE_FILTERS", '["a", "b"]')
    assert BridgeSettings().subscriptions == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FILTERS", "[]"), ("FILTERS", '{"a": 3}'), ("SESSION_EXPIRY_S", "3600"), ("MQTT_VERSION", "4"),
        ("MAX_IN_FLIGHT", "0"), ("ROOT_PATTERN", "te/#"), ("MQTT_PORT", "70000"),
        ("ROOT_PATTERN", "gw-{site}/{root}"), ("ROOT_PATTERN", "{ }/{root}"),
        ("ROOT_PATTERN", "{root}/#/x"), ("ROOT_PATTERN", "a+/{root}"), ("ROUTES", '{"a#": "x"}'),
        ("ROUTES", '{"$share/g/a": "x"}'), ("ROUTES", '{"a/#": "no name"}'),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"HEADRACE_BRIDGE_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        BridgeSettings()


def test_a_file_is_read_and_the_environment_goes_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text('mqtt_host = "mqtt.x"\nmqtt_port = 8883\ntls = true\n[filters]\n"te/#" = 2\n')
    monkeypatch.setenv("HEADRACE_BRIDGE_CONFIG", str(file))
    monkeypatch.setenv("HEADRACE_BRIDGE_MQTT_PORT", "8884")
    got = BridgeSettings()
    assert (got.mqtt_host, got.mqtt_port, got.tls, got.subscriptions) == ("mqtt.x", 8884, True, {"te/#": 2})
    file.write_text("mqtt_hots = 1\n")
    with pytest.raises(ValidationError, match="mqtt_hots"):
        BridgeSettings()
    for text in ("mqtt_port = ", "\xff"):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"^config: .*bridge\.toml"):
            BridgeSettings()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"mqtt_port": 0, "keep_alive_s": 0}, r"^mqtt_port: .*; keep_alive_s: .*"),
        ({"filters": ["$share/g/te/#"]}, r"^filters: .* needs shared_subscriptions"),
        ({"tls_ca_file": "x"}, r"^tls_ca_file needs tls$"),
        ({"tls": True, "tls_key_file": "x"}, r"^tls_key_file needs tls_cert_file$"),
        ({"mqtt_password_file": "x"}, r"^mqtt_password_file needs mqtt_user$"),
        ({"kafka_sasl": "PLAIN"}, r"^kafka_sasl needs kafka_user$"),
        ({"kafka_sasl": "PLAIN", "kafka_user": "u"}, r"^kafka_sasl needs kafka_password_file$"),
        ({"kafka_user": "u"}, r"^kafka_user needs kafka_sasl$"),
        ({"kafka_tls_ca_file": "x"}, r"^kafka_tls_ca_file needs kafka_tls$"),
        ({"kafka_sasl": "DIGEST"}, r"^kafka_sasl: "),
        ({"prefix": "a b"}, r"^prefix: "),
    ],
)  # fmt: skip
def test_an_error_is_one_line_that_names_the_field(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BridgeSettings(**settings)  # type: ignore[arg-type]
    assert re.search(line, in_one_line(caught.value))


def test_a_shared_subscription_may_be_allowed() -> None:
    assert BridgeSettings(filters=["$share/g/te/#"], shared_subscriptions=True).subscriptions == {"$share/g/te/#": 1}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"tls": True, "tls_ca_file": "{none}"}, "tls_ca_file"), ({"tls": True, "tls_ca_file": "{odd}"}, "tls_ca_file"),
        ({"tls": True, "tls_cert_file": "{odd}"}, "tls_cert_file"),
        ({"mqtt_user": "u", "mqtt_password_file": "{none}"}, "mqtt_password_file"),
        ({"kafka_tls": True, "kafka_tls_ca_file": "{none}"}, "kafka_tls_ca_file"),
        ({"kafka_sasl": "PLAIN", "kafka_user": "u", "kafka_password_file": "{none}"}, "kafka_password_file"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_names_the_setting(tmp_path: Path, settings: dict[str, object], field: str) -> None:
    (tmp_path / "odd").write_text("no certificate")
    paths = {"{none}": tmp_path / "none", "{odd}": tmp_path / "odd"}
    got = BridgeSettings(**{name: paths.get(str(value), value) for name, value in settings.items()})  # type: ignore[arg-type]
    read = kafka_base if field.startswith("kafka") else target_of
    with pytest.raises(ConfigError, match=rf"^{field}"):
        read(got)


def test_kafka_s_security_becomes_options_of_its_clients(tmp_path: Path) -> None:
    for name in ("ca", "password"):
        (tmp_path / name).write_text("secret\n")
    plain = BridgeSettings(kafka="h:1", kafka_options={"ssl.endpoint.identification.algorithm": "none"})
    assert kafka_base(plain) == {
        "client.id": "headrace-bridge", "bootstrap.servers": "h:1", "ssl.endpoint.identification.algorithm": "none",
        "reconnect.backoff.max.ms": "2000",
    }  # fmt: skip
    slow = kafka_base(BridgeSettings(kafka="h:1", kafka_options={"reconnect.backoff.ms": "5000"}))
    assert "reconnect.backoff.max.ms" not in slow, "2000 would be less"
    assert Topics(slow)
    both = BridgeSettings(
        kafka_tls=True, kafka_tls_ca_file=tmp_path / "ca", kafka_sasl="SCRAM-SHA-512", kafka_user="u",
        kafka_password_file=tmp_path / "password",
    )  # fmt: skip
    found = kafka_base(both)
    assert found["security.protocol"] == "SASL_SSL"
    assert (found["sasl.mechanism"], found["sasl.username"], found["sasl.password"]) == ("SCRAM-SHA-512", "u", "secret")
    assert found["ssl.ca.location"] == str(tmp_path / "ca")


def test_what_is_no_json_is_a_wrong_setting() -> None:
    env = {**os.environ, "HEADRACE_BRIDGE_ROUTES": "{"}
    done = subprocess.run(
        [sys.executable, "-m", "headrace_bridge"], env=env, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert '"routes"' in json.loads(done.stderr.splitlines()[-1])["error"]


def test_a_port_that_is_taken_is_a_wrong_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = {**os.environ, "HEADRACE_BRIDGE_HTTP_PORT": port, "HEADRACE_BRIDGE_STATE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "headrace_bridge"], env=env, capture_output=True, timeout=60, check=False
        )
    assert done.returncode == 2
    said = json.loads(done.stderr.splitlines()[-1])["error"]
    assert said.startswith("http_host, http_port: ")
    assert port in said


def test_an_option_that_kafka_clients_do_not_know_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"^kafka_options: .*no\.such"):
        Topics({**NOWHERE, "no.such": "1"})


def test_filters_are_remembered_by_client_id(tmp_path: Path) -> None:
    memory = FilterMemory(tmp_path / "state", "a/b")
    assert memory.load() == set()
    memory.save({"x", "te/#"})
    assert FilterMemory(tmp_path / "state", "a/b").load() == {"x", "te/#"}
    assert FilterMemory(tmp_path / "state", "a").load() == set()


def test_a_memory_that_cannot_be_used_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{")
    with pytest.raises(ConfigError, match="state_dir"):
        FilterMemory(tmp_path / "file", "a").save({"x"})
    for text in ("{", "5"):
        (tmp_path / "a.filters.json").write_text(text)
        with pytest.raises(ConfigError, match="state_dir"):
            FilterMemory(tmp_path, "a").load()


def test_the_topic_that_is_read_must_be_there_and_sets_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(_: object, topics: list[str]) -> dict[str, int]:
        asked.extend(topics)
        return dict.fromkeys(topics, 1_000)

    monkeypatch.setattr("headrace_bridge.kafka.Topics.limits", answer)
    settings = BridgeSettings(prefix="p.", routes={"a/#": "special"})
    found = topic_limits(settings, NOWHERE, threading.Event())
    assert set(asked) == {"p.raw", "p.dead-letter", "p.special", "p.outbound"}
    assert found == {"p.raw": 1_000, "p.dead-letter": 1_000, "p.special": 1_000}
    asked.clear()
    topic_limits(settings.model_copy(update={"outbound": False}), NOWHERE, threading.Event())
    assert "p.outbound" not in asked
