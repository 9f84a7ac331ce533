"""The job's own Kafka clients get the options of the job file under their own names, or the option is refused."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headrace_core.errors import ConfigError
from headrace_spark import kafka_clients

_PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a b" password="p\\"w;";'


def test_options_are_translated_and_the_prefix_does_not_matter() -> None:
    found = kafka_clients.client(
        "b:1",
        {
            "kafka.security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": _PLAIN,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "/me.pem",
            "ssl.endpoint.identification.algorithm": "",
            "request.timeout.ms": "5000",
            "max.poll.records": "10",
        },
    )
    assert found == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "a b",
        "sasl.password": 'p"w;',
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/me.pem",
        "ssl.key.location": "/me.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.timeout.ms": "5000",
    }


def test_a_client_and_its_secret_are_read_for_oauth() -> None:
    login = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId=x clientSecret="y";'
    options = {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": login}
    found = kafka_clients.client("b:1", {**options, "sasl.oauthbearer.token.endpoint.url": "https://a/b"})
    assert found["sasl.oauthbearer.client.id"] == "x"
    assert found["sasl.oauthbearer.client.secret"] == "y"
    assert found["sasl.oauthbearer.method"] == "oidc"


def test_librdkafka_knows_every_name_that_comes_out() -> None:
    numbers = {name: "1000" for name in kafka_clients._SAME if name.endswith(".ms")}
    others = {
        "client.dns.lookup": "use_all_dns_ips", "client.id": "x", "client.rack": "r", "security.protocol": "PLAINTEXT",
        "sasl.mechanism": "PLAIN", "sasl.kerberos.service.name": "kafka", "ssl.cipher.suites": "ALL",
        "sasl.oauthbearer.token.endpoint.url": "https://a/b", "ssl.endpoint.identification.algorithm": "https",
        "ssl.key.password": "x", "sasl.jaas.config": _PLAIN,
    }  # fmt: skip
    renamed = dict.fromkeys(("receive.buffer.bytes", "send.buffer.bytes", "request.timeout.ms"), "10000")
    given = {**numbers, **others, **renamed}
    assert given.keys() >= kafka_clients._SAME
    configuration = kafka_clients.client("127.0.0.1:1", given)
    Producer(configuration)
    AdminClient(configuration)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"group.id": "mine"}, "must not set group.id"),
        ({"kafka.bootstrap.servers": "x"}, "must not set bootstrap.servers"),
        ({"security.protocl": "SSL"}, "security.protocl is not an option"),
        ({"ssl.truststore.location": "/t.jks"}, "ssl.truststore.type = PEM"),
        ({"ssl.keystore.location": "/k.jks"}, "PEM or PKCS12"),
        ({"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"}, "username and password"),
    ],
)
def test_what_cannot_reach_all_clients_is_refused_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        kafka_clients.client("b:1", options)
