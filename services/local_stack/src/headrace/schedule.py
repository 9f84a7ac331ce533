"""Which messages of a run go out when: a pure function of how much of the run has passed and of what was read.

A step brings the readings of one moment. What is due by the part of the run that has passed goes out first, in the
plan's order and once, however short the run is; then the readings themselves, and what the session's phase adds:

    closed --0.05 early data--> waiting --0.20 registration--> open
    recorder: offline (stores) --0.60 burst--> offline again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace import sensors
from headrace.sensors import Reading
from headrace.telemetry import RECORDER, Gateway, Message

MOST_WAITING = 6
STORED_MS = 20_000


@dataclass(frozen=True)
class Moment:
    """What was read at one moment: of the computer, and of the publisher itself. `at_ms` is its event time."""

    readings: Sequence[Reading]
    own: Reading
    at_ms: int


Action = Callable[[Moment], list[Message]]


class Schedule:
    """The messages of one run of `gateway`; `facts` is text about the machine."""

    def __init__(self, gateway: Gateway, facts: dict[str, str]) -> None:
        self._gateway = gateway
        self._facts = facts
        self._stored: list[tuple[int, list[Reading]]] = []
        self._phase = "closed"
        self._waited = 0
        self._plan: deque[tuple[float, Action]] = deque(
            [
                (0.00, self._start),
                (0.05, self._early),
                (0.10, self._register_disks),
                (0.20, self._open),
                (0.30, lambda _: gateway.refused()),
                (0.35, lambda _: gateway.nonsense()),
                (0.40, lambda now: gateway.wrong_times(now.own, now.at_ms - 1)),
                (0.45, lambda now: gateway.ghosts(now.own, now.at_ms)),
                (0.60, self._burst),
            ]
        )

    def step(self, part: float, now: Moment) -> list[Message]:
        """The messages of one moment; `part` of the run has passed, from 0 to 1."""
        messages: list[Message] = []
        while self._plan and self._plan[0][0] <= part:
            messages += self._plan.popleft()[1](now)
        return messages + self._steady(now)

    def rest(self, now: Moment) -> list[Message]:
        """What was not due in a run that was too short; nothing after a long one."""
        return self.step(1.0, now) if self._plan else []

    def _steady(self, now: Moment) -> list[Message]:
        self._stored.append((now.at_ms, sensors.stored(now.readings)))
        messages = self._gateway.measurements(now.readings, now.at_ms)
        if self._phase == "waiting" and self._waited < MOST_WAITING:
            self._waited += 1
            messages += self._gateway.waiting(now.own, now.at_ms)
        elif self._phase == "open":
            messages += self._gateway.session(now.own, now.at_ms)
        return messages

    def _start(self, now: Moment) -> list[Message]:
        recorder = self._gateway.registration(RECORDER, {"@type": "child-device", "name": "offline recorder"})
        devices = [reading for reading in now.readings if reading.entity != sensors.DISKS]
        return [*self._gateway.registrations(devices), recorder, *self._gateway.facts(self._facts)]

    def _early(self, now: Moment) -> list[Message]:
        self._phase = "waiting"
        return self._gateway.early(now.own, now.at_ms - 2)

    def _register_disks(self, now: Moment) -> list[Message]:
        """After their first data, which has registered them automatically."""
        return self._gateway.registrations(reading for reading in now.readings if reading.entity == sensors.DISKS)

    def _open(self, _: Moment) -> list[Message]:
        self._phase = "open"
        return self._gateway.open_session()

    def _burst(self, now: Moment) -> list[Message]:
        recent = [moment for moment in self._stored if moment[0] > now.at_ms - STORED_MS]
        self._stored.clear()
        return self._gateway.burst(recent)
