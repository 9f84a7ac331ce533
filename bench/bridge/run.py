"""Figures of the bridge (bridge.md 8): CPU of its process per message, all threads, acknowledged after Kafka.

Only receiving is measured: `outbound` is off. Drain: messages that waited in mosquitto; the process has started before,
and waits for a mosquitto that is stopped. Live: while a publisher sends at full speed. The machine is shared by
publisher, brokers and candidate, so rates say little and are only compared with those of others of the same run, in
turns, the median of some rounds: `floor` has no Kafka beside it, `eager` gives Kafka the same work (see peers.py).
"""

from __future__ import annotations

import json
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.bridge import load
from bench.bridge.candidates import Candidate, Places, until
from bench.engines.measure import Figure
from headrace.kafka import KafkaServer
from headrace.mqtt import MqttBroker

DRAIN_US, LIVE_US, OF_FLOOR, MEMORY_MIB = 5.0, 9.0, 0.9, 100.0
WAITING = 100_000
SETTLE_S = 5.0
ROUNDS = 3
PREFIX = "bench."
OPTIONS = ("max_inflight_messages 1000", "autosave_interval 1800")  # mosquitto saves all its queues at each turn


@contextmanager
def brokers(directory: Path) -> Iterator[tuple[Places, KafkaServer]]:
    """A mosquitto and a Kafka of our own."""
    kafka = KafkaServer(directory / "kafka").start()
    mqtt = MqttBroker(directory / "mqtt", use="mosquitto", options=OPTIONS).start()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    names = [PREFIX + name for name in ("raw", "dead-letter", "outbound")]
    try:
        for future in admin.create_topics([NewTopic(name, 4, 1) for name in names]).values():
            future.result(30)
        del admin
        yield Places(directory, mqtt, kafka.bootstrap, PREFIX), kafka
    finally:
        mqtt.kill()
        kafka.kill()


class Measured:
    """What was seen of one candidate."""

    def __init__(self, candidate: Candidate, count: int) -> None:
        self.candidate, self.count = candidate, count
        self.drain_us = self.drain_rate = self.live_us = self.live_rate = self.memory_mib = 0.0
        self.behind = 0.0
        """Messages that it had not acknowledged when the publisher had published all."""

    def run(self) -> Measured:
        """Make the session, drain, live."""
        one, port, count = self.candidate, self.candidate.places.mqtt_port, self.count
        try:
            one.start()
            one.wait_ready()
            one.stop()
            load.publish(port, count)
            one.places.signal_mqtt(signal.SIGSTOP)
            one.start()
            one.wait_blocked()
            beginning = one.cpu_s
            one.places.signal_mqtt(signal.SIGCONT)
            until(lambda: one.acknowledged > 0, f"{one.name} begins")
            began, had = time.monotonic(), one.acknowledged
            until(lambda: one.acknowledged >= count, f"{one.name} drains")
            self.drain_rate = (count - had) / max(0.05, time.monotonic() - began)
            self.drain_us = max(0.0, one.cpu_s - beginning) / count * 1e6
            self._live(port, count)
        finally:
            one.places.signal_mqtt(signal.SIGCONT)
            one.stop()
            one.forget()
        return self

    def _live(self, port: int, count: int) -> None:
        one = self.candidate
        before, began = one.cpu_s, time.monotonic()
        publisher = load.start(port, count)
        publisher.wait()
        self.behind = max(0, 2 * count - one.acknowledged)
        until(lambda: one.acknowledged >= 2 * count, f"{one.name} follows")
        self.live_rate = count / (time.monotonic() - began)
        self.live_us = (one.cpu_s - before) / count * 1e6
        self.memory_mib = one.memory_mib

    @classmethod
    def middle(cls, found: list[Measured]) -> Measured:
        """The median of each value."""
        one = cls(found[0].candidate, found[0].count)
        for name in ("drain_us", "drain_rate", "live_us", "live_rate", "memory_mib", "behind"):
            setattr(one, name, statistics.median(getattr(each, name) for each in found))
        return one


def in_turns(places: Places, names: tuple[str, ...], count: int, rounds: int) -> dict[str, Measured]:
    """Candidates one after the other, some rounds of that."""
    found: dict[str, list[Measured]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(Measured(Candidate(places, name), count).run())
    return {name: Measured.middle(each) for name, each in found.items()}


def memory(places: Places, kafka: KafkaServer) -> float:
    """MiB of a bridge with Kafka stopped and messages waiting in mosquitto."""
    bridge = Candidate(places, "bridge")
    try:
        bridge.start()
        bridge.wait_ready()
        kafka.kill()
        load.publish(places.mqtt_port, WAITING)
        until(lambda: bridge.metric("in_flight") >= 1000, "the window is full")
        time.sleep(SETTLE_S)
        stopped = bridge.memory_mib
        kafka.start()
        until(lambda: bridge.acknowledged >= WAITING, "all arrives in the end")
    finally:
        bridge.stop()
    return stopped


def figures(*, quick: bool) -> list[Figure]:
    """All figures, with a profile where one is missed."""
    count, slow = (30_000, 10_000) if quick else (300_000, 30_000)
    with tempfile.TemporaryDirectory(prefix="bridge-bench-") as name, brokers(Path(name)) as (places, kafka):
        turns = in_turns(places, ("floor", "eager", "bridge"), count, 1 if quick else ROUNDS)
        floor, eager, bridge = turns["floor"], turns["eager"], turns["bridge"]
        paho = Measured(Candidate(places, "paho"), slow).run()
        found = [
            Figure("bridge, drain", bridge.drain_us, "us CPU/message", DRAIN_US, False, floor.drain_us),
            Figure("bridge, live", bridge.live_us, "us CPU/message", LIVE_US, False, floor.live_us),
            Figure("bridge, live rate over the floor's", bridge.live_rate / floor.live_rate, "x", OF_FLOOR),
        ]
        found.append(Figure("bridge, live rate over eager's", bridge.live_rate / eager.live_rate, "x"))
        for one in (bridge, floor, eager, paho):
            notes = {"messages": one.count, "memory_mib": round(one.memory_mib, 1), "behind": round(one.behind)}
            found += [
                Figure(f"{one.candidate.name}, drain rate", one.drain_rate, "messages/s", notes=notes),
                Figure(f"{one.candidate.name}, live rate", one.live_rate, "messages/s", notes=notes),
            ]
            if one is not bridge:
                found.append(Figure(f"{one.candidate.name}, drain", one.drain_us, "us CPU/message", notes=notes))
                found.append(Figure(f"{one.candidate.name}, live", one.live_us, "us CPU/message", notes=notes))
        if any(figure.met is False for figure in found):
            shares = profile(places, count)
            for figure in found:
                figure.profile = shares if figure.met is False else []
        found.append(Figure("bridge, memory, Kafka stopped", memory(places, kafka), "MiB", MEMORY_MIB, False))
    return found


def profile(places: Places, count: int) -> list[tuple[str, float]]:
    """Shares of the main thread's time while draining and live, by function."""
    file = places.directory / "profile.json"
    Measured(Candidate(places, "bridge", profile=file), count).run()
    return [(str(name), float(share)) for name, share in json.loads(file.read_text())]
