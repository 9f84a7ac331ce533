"""A run of the demo without brokers: the schedule's messages through the pure stages, and a writer of a few lines.

`Dry.topics` is what the topics would hold; records look like confluent-kafka's. What a test takes out of them, or adds,
is a mistake that the accounts must see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.evidence import Found, Mark, count, leaves
from headrace.publisher import digest
from headrace.schedule import Moment, Schedule
from headrace.sensors import CPU, DISKS, MAIN, MEMORY, NETWORK, Reading
from headrace.telemetry import Gateway, Message
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record
from headrace_core.state import MemoryState

START_MS = 1_700_000_000_000
STEP_MS = 250
BATCHING = BatchingConfig(timeout=2000, max_lateness=60_000, max_future_skew=60_000)
READINGS = [
    Reading(MAIN, "load", {"one": 0.5}),
    Reading(CPU, "usage", {"user": 10.5, "idle": 80.0}),
    Reading(MEMORY, "memory", {"used": 5_000_000_000, "low": False}),
    Reading(NETWORK, "total", {"sent": 1, "received": 2}),
    Reading(DISKS, "root", {"percent": 27.4}),
    Reading("device/disks/service/sda", "io", {"read_bytes": 12}),
]
OWN = Reading("", "process", {"threads": 4, "rss_bytes": 40_000_000})


@dataclass
class FakeRecord:
    """A record as a consumer gives it."""

    key_: bytes | None
    value_: bytes | None
    headers_: list[tuple[str, bytes]]
    at_ms: int

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> list[tuple[str, bytes]]:
        return self.headers_

    def timestamp(self) -> tuple[int, int]:
        return 1, self.at_ms


def script(run: str = "r1", steps: int = 40) -> list[tuple[int, Message]]:
    """(time of publishing, message) of a whole run."""
    schedule = Schedule(Gateway(run), {"os": "Linux"})
    found = []
    for step in range(steps):
        now = START_MS + step * STEP_MS
        found += [(now, message) for message in schedule.step(step / steps, Moment(READINGS, OWN, now))]
    now = START_MS + steps * STEP_MS
    return found + [(now, message) for message in schedule.rest(Moment(READINGS, OWN, now))]


@dataclass
class Dry:
    """The stack's topics, gauges and totals after `publish`."""

    registration: RegistrationStage = field(default_factory=lambda: RegistrationStage(RegistrationConfig()))
    batching: BatchingStage = field(default_factory=lambda: BatchingStage(BATCHING))
    states: Mapping[str, MemoryState] = field(
        default_factory=lambda: {"registration": MemoryState(), "batching": MemoryState()}
    )
    topics: dict[str, list[FakeRecord]] = field(
        default_factory=lambda: {t: [] for t in ("raw", "routed", "batches", "dead-letter", "outbound")}
    )
    published: Counter[bytes] = field(default_factory=Counter)

    def publish(self, messages: list[tuple[int, Message]]) -> Dry:
        """Everything, and then ticks until no batch is open."""
        for at_ms, message in messages:
            self.published[digest(message.topic, message.payload)] += 1
            self.raw(at_ms, message.topic, message.payload, retain=message.retain)
        last = messages[-1][0]
        for late in range(0, 4 * BATCHING.timeout, 500):
            self._raw(FakeRecord(None, b"", [("kind", b"tick")], last + late))
        return self

    def raw(self, at_ms: int, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """One message arrives in raw."""
        headers = [("topic", topic.encode()), ("retain", b"1" if retain else b"0")]
        self._raw(FakeRecord(topic.split("/")[0].encode(), payload, headers, at_ms))

    def mark(self) -> Mark:
        """Where everything stands; the writer has taken all batches."""
        stages = {"registration": self.registration, "batching": self.batching}
        gauges = {name: dict(stage.gauges(self.states[name])) for name, stage in stages.items()}
        totals = written(self.topics["batches"])
        ends = {(topic, 0): len(records) for topic, records in self.topics.items()}
        return Mark(ends, gauges, totals, totals["inserted"], 0)

    def found(self, since: Mark | None = None) -> Found:
        """The topics, counted from `since` on."""
        begin = since.ends if since else {}
        return count({topic: records[begin.get((topic, 0), 0) :] for topic, records in self.topics.items()})

    def _raw(self, record: FakeRecord) -> None:
        self._step("raw", self.registration, record)

    def _step(self, topic: str, stage: RegistrationStage | BatchingStage, record: FakeRecord) -> None:
        offset = len(self.topics[topic])
        self.topics[topic].append(record)
        emissions: list[Emission] = []
        read = Record(0, offset, record.at_ms, record.key_, record.value_, tuple(record.headers_))
        stage.apply(self.states[stage.name], read, emissions.append)
        for emission in emissions:
            out = FakeRecord(emission.key, emission.value, list(emission.headers), record.at_ms)
            if emission.topic == "routed":
                self._step("routed", self.batching, out)
            elif emission.topic in self.topics:
                self.topics[emission.topic].append(out)


def written(batches: list[FakeRecord]) -> Counter[str]:
    """Totals of a writer that has taken all these batches: each document once."""
    totals: Counter[str] = Counter()
    seen = set()
    for record in batches:
        document = msgspec.json.decode(record.value_ or b"")
        totals["records"] += 1
        if document["id"] in seen:
            totals["documents_repeated"] += 1
            continue
        seen.add(document["id"])
        rows = sum(leaves(member["value"]) for member in document["members"])
        for name, number in (("documents", 1), ("members", len(document["members"])), ("rows", rows)):
            totals[name] += number
    totals["members_taken"] = totals["members"]
    totals["inserted"] = totals["rows"]
    return totals
