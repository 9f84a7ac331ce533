"""When does nothing move any more? Said for each part from its own state, so that what is slow has a name.

The order of looking is the order of the flow: what a later part has taken is compared with what an earlier one had
written *before*. Two looks with nothing to say and the same number of messages in between mean: all is drained. Ticks
go on while an entity waits for its registration; they are no messages and disturb nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from headrace import evidence
from headrace.endpoints import Endpoints
from headrace.evidence import Ends, Offsets

INPUTS = {"registration": "raw", "batching": "routed"}
LOOK_S = 0.5


def settle(
    at: Endpoints, patience_s: float, *, at_least: int = 0, turn: Callable[[], None] = lambda: None
) -> list[str]:
    """Wait until nothing moves; returns what still does, empty if nothing.

    Gives up when for `patience_s` every look was the same, or after five times that. Registration must have counted
    `at_least` messages since it first ran. `turn` is called between two looks; what it raises ends the wait. Raises
    Unreachable."""
    end = time.monotonic() + 5 * patience_s
    before: tuple[list[str], int] = ([], -1)
    changed = time.monotonic()
    with closing(Offsets(at)) as offsets:
        while True:
            moving, messages = now = look(at, offsets)
            if messages < at_least:
                moving.append(f"MQTT: {at_least - messages} published messages have not reached registration")
            if not moving and now == before:
                return []
            if now != before:
                before, changed = now, time.monotonic()
            if time.monotonic() > min(end, changed + patience_s):
                return moving or ["messages still come in"]
            _wait(LOOK_S, turn)


def look(at: Endpoints, offsets: Offsets) -> tuple[list[str], int]:
    """What moves now, in words, and how many messages registration has counted. Raises Unreachable."""
    ends = offsets.ends()
    moving = [*_bridge(at), *_stages(at, ends)]
    gauges = evidence.gauges(at.streams_url)
    if opened := gauges.get("batching", {}).get("open_batches", 0):
        moving.append(f"batching: {opened} batches are open")
    if unpublished := _behind(ends, offsets.published()):
        moving.append(f"bridge: {unpublished} outbound messages are not published")
    batches = sum(end for (topic, _), end in ends.items() if topic == "batches")
    unread = {job.name: batches - evidence.stored(at.database, job).totals.get("records", 0) for job in at.jobs}
    moving += [f"{name}: {count} batches are not written" for name, count in unread.items() if count]
    return moving, gauges.get("registration", {}).get("in", 0)


def _bridge(at: Endpoints) -> list[str]:
    names = {"headrace_bridge_in_flight": "messages in flight", "headrace_bridge_kafka_queue": "records queued"}
    found = [(names[name], int(value)) for name, _, value in evidence.samples(at.bridge_url) if name in names]
    return [f"bridge: {value} {words}" for words, value in found if value]


def _stages(at: Endpoints, ends: Ends) -> list[str]:
    taken: dict[str, Ends] = {stage: {} for stage in INPUTS}
    for name, labels, value in evidence.samples(at.streams_url):
        if name == "headrace_stage_offset" and labels["stage"] in taken:
            taken[labels["stage"]][INPUTS[labels["stage"]], int(labels["partition"])] = int(value)
    wanted = {stage: {place: end for place, end in ends.items() if place[0] == INPUTS[stage]} for stage in INPUTS}
    late = {stage: _behind(wanted[stage], taken[stage], INPUTS[stage]) for stage in INPUTS}
    return [f"{stage}: {records} records behind" for stage, records in late.items() if records]


def _behind(ends: Ends, taken: Ends, topic: str = "outbound") -> int:
    return sum(max(0, end - taken.get(place, 0)) for place, end in ends.items() if place[0] == topic)


def _wait(seconds: float, turn: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    turn()
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
        turn()
