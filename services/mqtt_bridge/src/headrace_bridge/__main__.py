"""`python -m headrace_bridge`: builds the bridge from its settings and runs it until SIGTERM or an error.

Exit codes: 0 after SIGTERM or SIGINT, 2 when a setting is wrong, 70 after an error while running.
"""

from __future__ import annotations

import gc
import os
import signal
import ssl
import sys
import threading
import time
from pathlib import Path

import structlog
from pydantic import ValidationError
from pydantic_settings import SettingsError

from headrace_bridge import http, kafka, logs, outbound
from headrace_bridge.bridge import Bridge, Snapshot
from headrace_bridge.connection import Target
from headrace_bridge.doubts import resolve
from headrace_bridge.inflight import Window
from headrace_bridge.kafka import KafkaNotReady, Outlet
from headrace_bridge.ledger import Ledger
from headrace_bridge.receive import Receiver
from headrace_bridge.record import DEAD_LETTER, LETTER_BYTES, RAW, Router
from headrace_bridge.settings import FILE, PREFIX, BridgeSettings, in_one_line
from headrace_bridge.subscriptions import FilterMemory
from headrace_core.errors import ConfigError
from headrace_core.misspelt import unread

log = structlog.get_logger("headrace_bridge")

WRONG_SETTING, FAILED = 2, 70
ASK_AGAIN_S = 2.0
BACKOFF = {"reconnect.backoff.ms", "reconnect.backoff.max.ms"}
"""Options of which a user who gives one means the other, too, to be as librdkafka has it."""
COLLECT_AFTER = 50_000
"""Container objects. A message makes some and none is part of a cycle: looking for cycles every 700 is for nothing."""


def target_of(settings: BridgeSettings) -> Target:
    """Where to connect. Raises ConfigError naming the file that cannot be used."""
    return Target(
        settings.mqtt_host, settings.mqtt_port, settings.client_id, settings.mqtt_version == "5",
        settings.keep_alive_s, settings.session_expiry_s, settings.max_in_flight, settings.mqtt_user,
        secret("mqtt_password_file", settings.mqtt_password_file), tls_of(settings), settings.tls_server_name,
    )  # fmt: skip


def tls_of(settings: BridgeSettings) -> ssl.SSLContext | None:
    """The TLS context, None for plain TCP."""
    if not settings.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file)
    except (OSError, ValueError) as error:
        raise ConfigError("tls_ca_file", f"{settings.tls_ca_file}: {error}") from error
    if settings.tls_cert_file is not None:
        try:
            context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
        except (OSError, ValueError) as error:
            files = f"{settings.tls_cert_file}, {settings.tls_key_file}"
            raise ConfigError("tls_cert_file, tls_key_file", f"{files}: {error}") from error
    return context


def secret(field: str, path: Path | None) -> str | None:
    """A secret from a file, without the line's end."""
    if path is None:
        return None
    try:
        return path.read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(field, str(error)) from error


def kafka_base(settings: BridgeSettings) -> dict[str, str]:
    """What all Kafka clients of the bridge share."""
    base = {"client.id": settings.client_id, **settings.kafka_options, "bootstrap.servers": settings.kafka}
    if not BACKOFF & base.keys():
        base["reconnect.backoff.max.ms"] = "2000"
    protocol = ("SASL_" if settings.kafka_sasl else "") + ("SSL" if settings.kafka_tls else "PLAINTEXT")
    if protocol != "PLAINTEXT":
        base["security.protocol"] = protocol
    files = {
        "ssl.ca.location": ("kafka_tls_ca_file", settings.kafka_tls_ca_file),
        "ssl.certificate.location": ("kafka_tls_cert_file", settings.kafka_tls_cert_file),
        "ssl.key.location": ("kafka_tls_key_file", settings.kafka_tls_key_file),
    }
    for option, (field, path) in files.items():
        if secret(field, path) is not None:
            base[option] = str(path)
    if settings.kafka_sasl:
        base["sasl.mechanism"] = settings.kafka_sasl
    if settings.kafka_user is not None:
        base["sasl.username"] = settings.kafka_user
    password = secret("kafka_password_file", settings.kafka_password_file)
    return base if password is None else {**base, "sasl.password": password}


def topic_limits(settings: BridgeSettings, base: dict[str, str], stopping: threading.Event) -> dict[str, int] | None:
    """Wait until Kafka has the topics; those the bridge writes, with limits. None if the process shall end before."""
    written = dict.fromkeys(settings.prefix + name for name in (RAW, DEAD_LETTER, *settings.routes.values()))
    read = [settings.prefix + outbound.OUTBOUND] if settings.outbound else []
    there = kafka.Topics(base)
    while not stopping.is_set():
        try:
            found = there.limits(list(dict.fromkeys([*written, *read])))
            return {topic: found[topic] for topic in written}
        except KafkaNotReady as error:
            log.warning("waiting for Kafka", error=str(error))
        stopping.wait(ASK_AGAIN_S)
    return None


def check_letters(settings: BridgeSettings, limits: dict[str, int]) -> None:
    """Whether the topic of dead letters takes the largest one. Raises ConfigError."""
    topic = settings.prefix + DEAD_LETTER
    if limits[topic] < LETTER_BYTES:
        raise ConfigError(f"topic {topic}", f"max.message.bytes is {limits[topic]}, must be {LETTER_BYTES} or more")


def settle_doubts(
    settings: BridgeSettings, base: dict[str, str], ledger: Ledger, stopping: threading.Event
) -> bool:  # fmt: skip
    """Wait until Kafka has said what became of QoS 2 messages in doubt; False if the process shall end before."""
    while not stopping.is_set():
        try:
            resolve(ledger, base, settings.prefix + DEAD_LETTER, stopping)
        except KafkaNotReady as error:
            log.warning("waiting for Kafka", error=str(error))
            stopping.wait(ASK_AGAIN_S)
        else:
            return True
    return False


def build(settings: BridgeSettings, base: dict[str, str], limits: dict[str, int], ledger: Ledger) -> Bridge:
    """All parts of a bridge, tied together."""
    target = target_of(settings)
    outlet = Outlet(base, limits=limits, max_held_bytes=settings.max_in_flight_bytes)
    receiver = Receiver(
        outlet,
        Window(settings.max_in_flight, settings.max_in_flight_bytes),
        Router(settings.prefix, limits, settings.root_pattern, settings.routes, retain_as_published=target.v5),
        lambda: time.time_ns() // 1_000_000,
        ledger,
    )
    out = outbound.Outbound(
        outbound.consumer(base, settings.prefix), outlet, prefix=settings.prefix, window=settings.outbound_window,
        v5=target.v5,
    ) if settings.outbound else None  # fmt: skip
    memory = FilterMemory(settings.state_dir, settings.client_id)
    return Bridge(target, settings.subscriptions, memory, receiver, outlet, out, settings.stop_s)


def run(settings: BridgeSettings) -> None:
    """Everything, until a signal. Raises ConfigError, KafkaFailed."""
    stopping = threading.Event()
    bridge: Bridge | None = None

    def stop(*_: object) -> None:
        stopping.set()
        if bridge is not None:
            bridge.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    target_of(settings)
    base = kafka_base(settings)
    ledger = Ledger(settings.state_dir, settings.client_id)
    try:
        web = http.serve(lambda: bridge.snapshot if bridge else Snapshot(), settings.http_host, settings.http_port)
    except OSError as error:
        raise ConfigError("http_host, http_port", f"{settings.http_host}:{settings.http_port}: {error}") from error
    log.info("started", kafka=settings.kafka, prefix=settings.prefix, mqtt=f"{settings.mqtt_host}:{settings.mqtt_port}")
    limits = topic_limits(settings, base, stopping)
    if limits is not None:
        check_letters(settings, limits)
    if limits is not None and settle_doubts(settings, base, ledger, stopping):
        bridge = build(settings, base, limits, ledger)
        if stopping.is_set():
            bridge.stop()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER, 20, 50)
        bridge.run()
    web.shutdown()


def warn_of_misspelt() -> None:
    """A line for each variable that looks like one of ours and is none."""
    for name, nearest in unread(os.environ, PREFIX, [*BridgeSettings.model_fields, FILE.removeprefix(PREFIX)]):
        log.warning("no such setting", variable=name, nearest=nearest)


def main() -> int:
    """Run; returns the exit code."""
    logs.configure()
    warn_of_misspelt()
    try:
        run(BridgeSettings())
    except ValidationError as error:
        log.critical("wrong setting", error=in_one_line(error))
        return WRONG_SETTING
    except (SettingsError, ConfigError) as error:
        log.critical("wrong setting", error=str(error))
        return WRONG_SETTING
    except Exception as error:
        log.critical("failed", error=repr(error), exc_info=error)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
