"""A gateway's telemetry as MQTT messages in the topics of registration.md 3, well-behaved and deliberately not.

The computer is the gateway (the main device); processor, memory, disks, network and temperature chips are child
devices, single disks and network cards are services. Pure: readings and times in, messages out.

Each run also has a *session* of its own, with ids that no run before used, so that what comes early is early:

| topic id | what goes wrong with it |
|---|---|
| `session/<run>//` | data before its registration; its registration twice; each measurement twice |
| `session/<run>/process/` | registered before its parent, the session; its data waits with it |
| `session/<run>/impostor/` | claims the session's external id: refused as `id_in_use` |
| `session/<run>/ghost/` | never registers: its data stays pending |
| `device/recorder//` | was offline: sends what it had stored in one burst, moments in pairs turned round |

Beside that: measurements ten minutes late and one hour early (dead letters `late`, `future`), an unreadable one
(`invalid`), a channel that does not exist, a signal of an unknown entity, and clearing what never was (discarded).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace import sensors
from headrace.sensors import Reading

encode = msgspec.json.encode
TOO_LATE_MS = 10 * 60_000
LATE_MS = 3_000
TOO_EARLY_MS = 60 * 60_000
GHOSTS = 3
RECORDER = "device/recorder//"


@dataclass(frozen=True)
class Message:
    """One MQTT message, QoS 1. `event_ms` is set for measurements; `held` says that it has to wait for a registration,
    so how long it takes says nothing about the pipeline. `why` names the irregularity, empty if it is none."""

    topic: str
    payload: bytes
    retain: bool = False
    event_ms: int | None = None
    held: bool = False
    why: str = ""


class Gateway:
    """Makes messages of one run under `root`. `run` is a topic segment that no run before had."""

    def __init__(self, run: str, root: str = "te") -> None:
        self.run = run
        self._root = root
        self._session = f"session/{run}//"
        self._process = f"session/{run}/process/"
        self._ghost = f"session/{run}/ghost/"

    def registrations(self, readings: Iterable[Reading]) -> list[Message]:
        """Registrations of the child devices (retained). Services register automatically, by their first data."""
        devices = {r.entity for r in readings if r.entity.endswith("//")} - {sensors.MAIN}
        return [self.registration(entity, {"@type": "child-device"}) for entity in sorted(devices)]

    def facts(self, facts: dict[str, str]) -> list[Message]:
        """Twin data of the gateway."""
        return [self._message(sensors.MAIN, f"twin/{key}", encode(text), retain=True) for key, text in facts.items()]

    def measurements(self, readings: Iterable[Reading], at_ms: int) -> list[Message]:
        """The readings of one moment."""
        return [self.measurement(reading, at_ms) for reading in readings]

    def measurement(
        self, reading: Reading, at_ms: int, *, entity: str | None = None, held: bool = False, why: str = ""
    ) -> Message:
        """One reading, under another entity if given. `at_ms` is its event time."""
        payload = encode({"time": at_ms / 1000, **reading.values})
        topic = self._topic(reading.entity if entity is None else entity, f"m/{reading.type}")
        return Message(topic, payload, event_ms=at_ms, held=held, why=why)

    def registration(self, entity: str, content: dict[str, str], why: str = "") -> Message:
        """A registration message."""
        return Message(f"{self._root}/{entity}", encode(content), retain=True, why=why)

    def early(self, reading: Reading, at_ms: int) -> list[Message]:
        """Data before registration, and a child before its parent (registration.md 5 and 6)."""
        process = {"@type": "service", "@parent": f"session/{self.run}//", "name": "publisher"}
        return [
            self.measurement(reading, at_ms, entity=self._session, held=True, why="early"),
            self._message(self._session, "twin/run", encode(self.run), retain=True, why="early"),
            self.registration(self._process, process, "child before parent"),
            self.measurement(reading, at_ms, entity=self._process, held=True, why="early"),
        ]

    def waiting(self, reading: Reading, at_ms: int) -> list[Message]:
        """More early data: of the session and of its child."""
        return [
            self.measurement(reading, at_ms, entity=entity, held=True, why="early")
            for entity in (self._session, self._process)
        ]

    def open_session(self) -> list[Message]:
        """The registration that releases the early data, sent twice."""
        content = {"@type": "child-device", "name": f"session {self.run}", "@id": f"session-{self.run}"}
        return [
            self.registration(self._session, content),
            self.registration(self._session, content, "registration twice"),
        ]

    def session(self, reading: Reading, at_ms: int) -> list[Message]:
        """Data of the registered session and its child: one after the other, and one of them twice."""
        once = self.measurement(reading, at_ms, entity=self._session)
        again = self.measurement(reading, at_ms, entity=self._session, why="twice")
        return [once, self.measurement(reading, at_ms, entity=self._process), again]

    def refused(self) -> list[Message]:
        """A registration that must be refused: `id_in_use`."""
        content = {"@type": "child-device", "@id": f"session-{self.run}"}
        return [self.registration(f"session/{self.run}/impostor/", content, "refused")]

    def ghosts(self, reading: Reading, at_ms: int) -> list[Message]:
        """Data of an entity that never registers."""
        return [
            self.measurement(reading, at_ms + n, entity=self._ghost, held=True, why="never registered")
            for n in range(GHOSTS)
        ]

    def wrong_times(self, reading: Reading, at_ms: int) -> list[Message]:
        """A late measurement that still counts, one that is too late, one from the future."""
        return [
            self.measurement(reading, at_ms - LATE_MS - 7, entity=self._session, why="late"),
            self.measurement(reading, at_ms - TOO_LATE_MS, entity=self._session, why="too late"),
            self.measurement(reading, at_ms + TOO_EARLY_MS, entity=self._session, why="from the future"),
        ]

    def nonsense(self) -> list[Message]:
        """What no stage can use: it must be counted, once, under its reason."""
        return [
            self._message(self._session, "m/process", b"{not JSON", why="unreadable"),
            self._message(self._session, "weather", b"{}", why="unknown channel"),
            self._message(f"session/{self.run}/nobody/", "signal/reset", b"{}", why="signal of an unknown entity"),
            self._message(f"session/{self.run}/nobody/", "twin/x", b"", why="clears what never was"),
        ]

    def burst(self, stored: list[tuple[int, list[Reading]]]) -> list[Message]:
        """What the recorder kept while it was offline, as (event time, readings); each pair of moments is turned
        round, so the later one arrives first."""
        turned = [moment for pair in range(0, len(stored), 2) for moment in reversed(stored[pair : pair + 2])]
        before, messages = 0, []
        for at_ms, readings in turned:
            why = "out of order" if at_ms < before else ""
            messages += [self.measurement(r, at_ms, entity=RECORDER, why=why) for r in readings]
            before = at_ms
        return messages

    def _message(self, entity: str, channel: str, payload: bytes, *, retain: bool = False, why: str = "") -> Message:
        return Message(self._topic(entity, channel), payload, retain, why=why)

    def _topic(self, entity: str, channel: str) -> str:
        return f"{self._root}/{entity}/{channel}"
