"""TLS, client certificates, server names, users and passwords on both sides, all with real brokers (bridge.md 6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from headrace.kafka import KafkaServer, free_port
from headrace.mqtt import MqttBroker, mosquitto
from tests.support.bridge_process import BridgeProcess, create_topics, read_topic, until
from tests.support.certificates import Authority, mosquitto_password
from tests.support.mqtt_fixture import Publisher

pytestmark = pytest.mark.kafka
USER, PASSWORD = "bridge", "p ä=\"'ss;word"


@dataclass
class Secure:
    """Where the secured ends listen, and what opens them."""

    directory: Path
    authority: Authority
    client: tuple[Path, Path]
    password_file: Path


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Secure:
    directory = tmp_path_factory.mktemp("secure")
    authority = Authority(directory / "certificates")
    password_file = directory / "password"
    password_file.write_text(PASSWORD + "\n")
    return Secure(directory, authority, authority.issue("client"), password_file)


@dataclass
class Mosquitto:
    broker: MqttBroker
    tls: int
    tls_by_name: int


@pytest.fixture(scope="module")
def secured_mqtt(secure: Secure) -> Iterator[Mosquitto]:
    """A plain listener, one that wants a client certificate, one whose certificate is for a name alone."""
    if mosquitto() is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    passwords = secure.directory / "passwords"
    passwords.write_text(mosquitto_password(USER, PASSWORD))
    passwords.chmod(0o600)
    by_address, by_name = (
        secure.authority.issue("mqtt", address=True),
        secure.authority.issue("named", names=("mqtt.x",)),
    )
    ports = free_port(), free_port()
    options = [f"password_file {passwords}"]
    for port, (certificate, key), required in ((ports[0], by_address, "true"), (ports[1], by_name, "false")):
        options += [
            f"listener {port} 127.0.0.1", f"cafile {secure.authority.ca_file}", f"certfile {certificate}",
            f"keyfile {key}", f"require_certificate {required}",
        ]  # fmt: skip
    broker = MqttBroker(secure.directory / "mqtt", use="mosquitto", options=tuple(options)).start()
    yield Mosquitto(broker, *ports)
    broker.kill()


@dataclass
class Kafka:
    server: KafkaServer
    tls: int
    sasl: int


@pytest.fixture(scope="module")
def secured_kafka(secure: Secure) -> Iterator[Kafka]:
    """Beside the plain listener one with client certificates, and one with TLS and SASL."""
    certificate, key = secure.authority.issue("kafka", address=True)
    store = secure.directory / "kafka.pem"
    store.write_bytes(key.read_bytes() + certificate.read_bytes())
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\").replace("ä", "\\u00e4")
    properties = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(store), "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secure.authority.ca_file), "listener.name.tls.ssl.client.auth": "required",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": f'{plain} user_{USER}="{quoted}";',
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": scram,
    }  # fmt: skip
    ports = free_port(), free_port()
    listeners = {"TLS": ("SSL", ports[0]), "SASL": ("SASL_SSL", ports[1])}
    server = KafkaServer(secure.directory / "kafka", heap="384m", properties=properties, listeners=listeners).start()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for future in admin.alter_user_scram_credentials([wanted]).values():
            future.result(240)
    create_topics(server.bootstrap, "p.")
    yield Kafka(server, *ports)
    server.kill()


def mqtt_settings(secure: Secure, **more: str) -> dict[str, str]:
    certificate, key = secure.client
    return {
        "TLS": "true", "TLS_CA_FILE": str(secure.authority.ca_file), "TLS_CERT_FILE": str(certificate),
        "TLS_KEY_FILE": str(key), "MQTT_USER": USER, "MQTT_PASSWORD_FILE": str(secure.password_file), **more,
    }  # fmt: skip


def passes_messages(bridge: BridgeProcess, mqtt: MqttBroker, plain_kafka: str) -> None:
    """Messages go through, a large one too, and a second run goes on with the session."""
    bridge.start().wait_ready()
    device = Publisher(mqtt.port)
    before = len(read_topic(plain_kafka, "p.raw"))
    for _ in range(300):
        device.publish("te/x", b"y")
    device.publish("te/x", b"z" * 700_000)
    device.confirm()
    until(lambda: bridge.metrics()["acknowledged_total"] >= 301, f"acknowledged, see {bridge.log}")
    assert bridge.terminate() == 0
    device.publish("te/x", b"between")
    device.confirm()
    bridge.start().wait_ready()
    until(lambda: bridge.metrics()["acknowledged_total"] >= 1, f"the session stayed, see {bridge.log}")
    assert bridge.terminate() == 0
    assert len(read_topic(plain_kafka, "p.raw")) == before + 302
    device.close()


def test_mqtt_with_tls_client_certificate_user_and_password(
    secure: Secure, secured_mqtt: Mosquitto, secured_kafka: Kafka, tmp_path: Path
) -> None:
    settings = mqtt_settings(secure, CLIENT_ID="tls")
    bridge = BridgeProcess(secured_kafka.server.bootstrap, "p.", secured_mqtt.tls, tmp_path, settings)
    passes_messages(bridge, secured_mqtt.broker, secured_kafka.server.bootstrap)


def test_mqtt_server_name_for_a_certificate_without_the_address(
    secure: Secure, secured_mqtt: Mosquitto, secured_kafka: Kafka, tmp_path: Path
) -> None:
    settings = mqtt_settings(secure, CLIENT_ID="named", TLS_SERVER_NAME="mqtt.x")
    bridge = BridgeProcess(secured_kafka.server.bootstrap, "p.", secured_mqtt.tls_by_name, tmp_path, settings)
    passes_messages(bridge, secured_mqtt.broker, secured_kafka.server.bootstrap)


@pytest.mark.parametrize("sasl", ["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_with_tls_and_sasl(
    secure: Secure, secured_mqtt: Mosquitto, secured_kafka: Kafka, tmp_path: Path, sasl: str
) -> None:
    settings = {"CLIENT_ID": f"k{sasl}", "KAFKA_TLS": "true", "KAFKA_TLS_CA_FILE": str(secure.authority.ca_file)}
    if sasl:
        more = {"KAFKA_SASL": sasl, "KAFKA_USER": USER, "KAFKA_PASSWORD_FILE": str(secure.password_file)}
        port = secured_kafka.sasl
    else:
        more = {"KAFKA_TLS_CERT_FILE": str(secure.client[0]), "KAFKA_TLS_KEY_FILE": str(secure.client[1])}
        port = secured_kafka.tls
    bridge = BridgeProcess(f"127.0.0.1:{port}", "p.", secured_mqtt.broker.port, tmp_path, settings | more)
    passes_messages(bridge, secured_mqtt.broker, secured_kafka.server.bootstrap)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("password", "refused: not authorized"), ("authority", "certificate verify failed"),
        ("no certificate", "alert certificate required"), ("name", "not valid for '127.0.0.1'"),
        ("kafka password", "uthentication failed"), ("kafka authority", "certificate verify failed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(
    secure: Secure, secured_mqtt: Mosquitto, secured_kafka: Kafka, tmp_path: Path, case: str, words: str
) -> None:
    other = Authority(tmp_path / "other", "another authority")
    (tmp_path / "wrong").write_text("wrong")
    settings, kafka, port = mqtt_settings(secure), secured_kafka.server.bootstrap, secured_mqtt.tls
    if case == "password":
        settings["MQTT_PASSWORD_FILE"] = str(tmp_path / "wrong")
    elif case == "authority":
        settings["TLS_CA_FILE"] = str(other.ca_file)
    elif case == "no certificate":
        del settings["TLS_CERT_FILE"], settings["TLS_KEY_FILE"]
    elif case == "name":
        port = secured_mqtt.tls_by_name
    elif case == "kafka password":
        kafka = f"127.0.0.1:{secured_kafka.sasl}"
        settings |= {"KAFKA_TLS": "true", "KAFKA_TLS_CA_FILE": str(secure.authority.ca_file), "KAFKA_SASL": "PLAIN"}
        settings |= {"KAFKA_USER": USER, "KAFKA_PASSWORD_FILE": str(tmp_path / "wrong")}
    else:
        kafka = f"127.0.0.1:{secured_kafka.sasl}"
        settings |= {"KAFKA_TLS": "true", "KAFKA_TLS_CA_FILE": str(other.ca_file), "KAFKA_SASL": "PLAIN"}
        settings |= {"KAFKA_USER": USER, "KAFKA_PASSWORD_FILE": str(secure.password_file)}
    bridge = BridgeProcess(kafka, "p.", port, tmp_path, settings)
    bridge.start()

    def said() -> bool:
        lines = [json.loads(line) for line in bridge.log.read_text().splitlines() if line.startswith("{")]
        return any(words in str(line.get("error", "")) for line in lines)

    try:
        until(said, f"{words!r} in {bridge.log}")
        assert not bridge.state().get("ready")
        assert bridge.terminate() == 0
        assert PASSWORD not in bridge.log.read_text()
    finally:
        bridge.end()
