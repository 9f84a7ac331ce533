"""The job's own Kafka clients, for topics and dead letters, connect as Spark's readers do.

Theory: `kafka_options` of the job file are named as Java clients name them, and Spark's readers get them as they are.
The job's own clients are of librdkafka, which names some of them differently and some not at all. Each option is one of
three: translated here, of readers alone, or refused by its name. So nothing is secured for one client and open for the
other, and nothing that is misspelt is silently dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headrace_core.errors import ConfigError

FIELD: Final = "kafka_options"
_SAME: Final = frozenset({
    "client.dns.lookup", "client.id", "client.rack", "connections.max.idle.ms", "metadata.max.age.ms",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms",
    "sasl.kerberos.service.name", "sasl.mechanism", "sasl.oauthbearer.token.endpoint.url", "security.protocol",
    "socket.connection.setup.timeout.ms", "ssl.cipher.suites", "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
})  # fmt: skip
_OTHERWISE: Final = {
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
_STORES: Final = frozenset({
    "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type", "ssl.truststore.location",
    "ssl.truststore.type", "sasl.jaas.config",
})  # fmt: skip
_READERS: Final = frozenset({
    "check.crcs", "default.api.timeout.ms", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes",
    "heartbeat.interval.ms", "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records",
    "session.timeout.ms",
})  # fmt: skip
_OWN: Final = frozenset({
    "auto.offset.reset", "bootstrap.servers", "enable.auto.commit", "group.id", "interceptor.classes",
    "isolation.level", "key.deserializer", "value.deserializer",
})  # fmt: skip
_JAAS: Final = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')


def plain(options: Mapping[str, str]) -> dict[str, str]:
    """The options without the prefix `kafka.`, as Java clients name them. Raises `ConfigError` for one that the job
    sets itself or does not know."""
    found = {name.removeprefix("kafka."): value for name, value in options.items()}
    for name in found:
        if name in _OWN:
            raise ConfigError(FIELD, f"must not set {name}, the job does")
        if name not in _SAME | _OTHERWISE.keys() | _STORES | _READERS:
            raise ConfigError(FIELD, f"{name} is not an option that is known")
    return found


def client(bootstrap: str, options: Mapping[str, str]) -> dict[str, str]:
    """Configuration of a librdkafka client. Raises `ConfigError`."""
    java = plain(options)
    found = {"bootstrap.servers": bootstrap}
    for name, value in java.items():
        if name in _SAME:
            found[name] = value
        elif name in _OTHERWISE:
            found[_OTHERWISE[name]] = value
    if found.get("ssl.endpoint.identification.algorithm") == "":  # Java's way to switch it off
        found["ssl.endpoint.identification.algorithm"] = "none"
    return {**found, **_truststore(java), **_keystore(java), **_login(java)}


def _truststore(java: Mapping[str, str]) -> dict[str, str]:
    if "ssl.truststore.location" not in java:
        return {}
    if java.get("ssl.truststore.type", "JKS").upper() != "PEM":
        raise ConfigError(FIELD, "ssl.truststore.location needs ssl.truststore.type = PEM, which all clients can read")
    return {"ssl.ca.location": java["ssl.truststore.location"]}


def _keystore(java: Mapping[str, str]) -> dict[str, str]:
    if "ssl.keystore.location" not in java:
        return {}
    match java.get("ssl.keystore.type", "JKS").upper():
        case "PEM":  # one file with the key and its certificates
            return {
                "ssl.certificate.location": java["ssl.keystore.location"],
                "ssl.key.location": java["ssl.keystore.location"],
            }
        case "PKCS12":
            return {name: java[name] for name in ("ssl.keystore.location", "ssl.keystore.password") if name in java}
        case _:
            raise ConfigError(FIELD, "ssl.keystore.location needs ssl.keystore.type = PEM or PKCS12")


def _login(java: Mapping[str, str]) -> dict[str, str]:
    """User and password, or client and secret, from `sasl.jaas.config`."""
    if "sasl.jaas.config" not in java:
        return {}
    text = java["sasl.jaas.config"]
    told = {name: re.sub(r"\\(.)", r"\1", quoted) or bare for name, quoted, bare in _JAAS.findall(text)}
    if "username" in told and "password" in told:
        return {"sasl.username": told["username"], "sasl.password": told["password"]}
    if "clientId" in told and "clientSecret" in told:
        scope = {"sasl.oauthbearer.scope": told["scope"]} if "scope" in told else {}
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": told["clientId"],
            "sasl.oauthbearer.client.secret": told["clientSecret"],
            **scope,
        }
    raise ConfigError(FIELD, "sasl.jaas.config must name username and password, or clientId and clientSecret")
