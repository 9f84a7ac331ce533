"""What the demo publishes: the right topics and payloads, and every irregularity it promises."""

from __future__ import annotations

import json
import math
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest

from headrace import sensors
from headrace.schedule import Moment, Schedule
from headrace.sensors import CPU, Reading
from headrace.telemetry import RECORDER, Gateway, Message
from headrace_core.registration import topics
from tests.support.dry_run import OWN, READINGS, START_MS, Dry, script

PROMISED = {
    "early", "child before parent", "registration twice", "twice", "refused", "never registered", "late", "too late",
    "from the future", "unreadable", "unknown channel", "signal of an unknown entity", "clears what never was",
    "out of order",
}  # fmt: skip


def test_this_computer_has_a_processor_and_memory():
    found = {(reading.entity, reading.type): reading.values for reading in sensors.read()}
    assert found[sensors.MEMORY, "memory"]["used"] > 0
    assert (CPU, "usage") in found


def test_readings_are_finite_numbers_or_booleans_of_valid_entities():
    for reading in sensors.read():
        assert topics.topic_id(reading.entity) == reading.entity
        assert reading.values
        assert all(isinstance(value, bool) or math.isfinite(value) for value in reading.values.values())


def test_what_a_machine_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch):
    """As in a container: no disks, no sensors, no network; and a sensor that reads nonsense."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("/sys")

    for name in ("disk_usage", "net_io_counters", "sensors_battery", "swap_memory", "cpu_stats"):
        monkeypatch.setattr(psutil, name, refused, raising=False)
    chip = SimpleNamespace(label="", current=math.nan)
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: {"chip": [chip]}, raising=False)
    entities = {reading.entity for reading in sensors.read()}
    assert {CPU, sensors.MEMORY} <= entities <= {sensors.MAIN, CPU, sensors.MEMORY}


def test_names_of_disks_and_chips_become_topic_segments():
    assert sensors.safe("nvme0n1") == "nvme0n1"
    assert sensors.safe("Tctl +/# 1") == "Tctl-1"
    assert sensors.safe("+#") == "unnamed"


def test_a_measurement_has_its_event_time_in_seconds():
    message = Gateway("r1").measurement(Reading(CPU, "usage", {"user": 1.5}), 1_700_000_000_123)
    assert message.topic == "te/device/cpu///m/usage"
    assert json.loads(message.payload) == {"time": 1700000000.123, "user": 1.5}
    assert message.event_ms == 1_700_000_000_123
    assert not message.retain


def test_registrations_are_retained_and_leave_out_the_main_device():
    found = Gateway("r1").registrations(READINGS)
    assert all(message.retain for message in found)
    assert [message.topic for message in found] == sorted(
        ["te/device/cpu//", "te/device/memory//", "te/device/network//", "te/device/disks//"]
    )


def test_every_promised_irregularity_is_in_a_run_however_short():
    for steps in (1, 2, 7, 40):
        assert {message.why for _, message in script(steps=steps)} - {""} >= PROMISED - _of_short_runs(steps)


def _of_short_runs(steps: int) -> set[str]:
    """A burst needs two stored moments to be turned round; nothing can be sent twice after a session of no time."""
    return {"out of order"} if steps < 3 else set()


def test_a_run_without_faults_of_the_machine_is_the_same_again():
    assert script() == script()


def test_two_runs_share_no_session():
    def sessions(run: str) -> set[str]:
        return {message.topic for _, message in script(run) if "session/" in message.topic}

    assert sessions("a").isdisjoint(sessions("b"))


def test_the_burst_is_what_the_recorder_stored_with_its_own_event_times():
    schedule = Schedule(Gateway("r1"), {})
    bursts: list[Message] = []
    for step in range(10):
        now = Moment(READINGS, OWN, START_MS + step * 250)
        bursts += [message for message in schedule.step(step / 10, now) if f"{RECORDER}/m/" in message.topic]
    times = [message.event_ms for message in bursts if message.topic.endswith("m/usage")]
    assert sorted(times) == [START_MS + step * 250 for step in range(6)]
    assert times != sorted(times)


def test_the_stages_see_each_irregularity_for_what_it_is():
    """Through the pure stages: refused and lost by reason, replayed, repeats, late, pending."""
    dry = Dry().publish(script())
    registration, batching = dry.mark().gauges["registration"], dry.mark().gauges["batching"]
    ends = ("refused.", "lost.", "discarded.")
    assert {name: n for name, n in registration.items() if n and name.startswith(ends)} == {
        "refused.id_in_use": 1, "refused.unknown_channel": 1, "lost.unregistered_signal": 1,
        "discarded.clear_of_unknown": 1,
    }  # fmt: skip
    assert registration["replayed"] == 15
    assert registration["no_effect"] == 1
    assert registration["pending"] == 3
    assert (batching["late"], batching["future"], batching["invalid"]) == (1, 1, 1)
    assert batching["duplicate"] == Counter(message.why for _, message in script())["twice"] > 0
    assert batching["open_members"] == 0


def test_a_child_is_registered_after_its_parent_and_before_its_data():
    dry = Dry().publish(script())
    order = []
    for record in dry.topics["routed"]:
        headers = dict(record.headers_)
        if headers["kind"] in (b"register", b"data") and headers["entity"].startswith(b"te/session/r1/"):
            order.append((headers["kind"], headers["entity"]))
    session, process = b"te/session/r1//", b"te/session/r1/process/"
    assert order[0] == (b"register", session)
    assert order.index((b"register", process)) < order.index((b"data", process))
    assert order.index((b"register", session)) < order.index((b"data", session)) < order.index((b"register", process))
