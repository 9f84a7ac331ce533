"""All clients of the writer, Spark's and its own, talk to a broker that wants TLS and a password."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka import KafkaServer, free_port
from headrace_spark import kafka_clients
from tests.support.spark_job import Job, documents

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(2400)]
LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="s3 cret"'


class Secured(KafkaServer):
    """A broker with a second listener, for TLS and SASL/PLAIN."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.secured, self.certificate = free_port(), folder / "certificate.pem"
        self._keys = folder / "keys.pem"

    def _properties(self) -> str:
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{self._dir}/key.pem"]
        subprocess.run([*command, "-out", str(self.certificate)], check=True, capture_output=True)
        self._keys.write_text((self._dir / "key.pem").read_text() + self.certificate.read_text())
        more = {
            "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": f'{LOGIN} user_me="s3 cret";',
            "listener.name.secured.ssl.keystore.type": "PEM",
            "listener.name.secured.ssl.keystore.location": str(self._keys),
        }
        plain = super()._properties()
        for name, value in (
            ("listeners", f"SECURED://127.0.0.1:{self.secured}"),
            ("advertised.listeners", f"SECURED://127.0.0.1:{self.secured}"),
            ("listener.security.protocol.map", "SECURED:SASL_SSL"),
        ):
            plain = plain.replace(f"\n{name}=", f"\n{name}={value},")
        return plain + "".join(f"{name}={value}\n" for name, value in more.items())


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    server = Secured(tmp_path / "kafka")
    server.start()
    yield server
    server.stop()


def test_batches_and_dead_letters_go_through_tls_and_sasl(secured: Secured, tmp_path: Path) -> None:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f"{LOGIN};",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secured.certificate),
    }
    where = f"127.0.0.1:{secured.secured}"
    client = kafka_clients.client(where, options)
    admin = AdminClient(client)
    for future in admin.create_topics([NewTopic(f"t.{name}", 2, 1) for name in ("batches", "dead-letter")]).values():
        future.result(240)
    producer = Producer(client)
    for value in [*documents(5), b"{"]:
        producer.produce("t.batches", value=value)
    assert producer.flush(240) == 0
    one = Job(tmp_path, where, "t.", available_now=True, kafka_options=options)
    try:
        assert one.run() == 0, one.log()[-4000:]
        assert one.rows() == 50
        consumer = Consumer({**client, "group.id": "check", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t.dead-letter"])
        message = consumer.poll(60)
        assert message is not None
        assert json.loads(message.value() or b"")["reason"] == "not_json"
        consumer.close()
        one.change(kafka_options={**options, "sasl.jaas.config": LOGIN.replace("s3 cret", "wrong") + ";"})
        assert one.run() == 1
        assert one.rows() == 50
    finally:
        one.end()
