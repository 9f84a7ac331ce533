"""Crashes at every step, other chunks and lost stores change no output and no state of the registration stage."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator

import pytest

from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record, header
from headrace_core.state import MemoryState
from tests.support.simulator import Simulation

STEPS = int(os.environ.get("HEADRACE_SIM_STEPS", "100000"))
SEEDS = [int(os.environ["HEADRACE_SIM_SEED"])] if "HEADRACE_SIM_SEED" in os.environ else range(10)
CONFIG = RegistrationConfig(
    roots={"te": "main-dev", "gw": "gateway"},
    telemetry_cache_size=6,
    telemetry_cache_per_entity=4,
    metadata_cache_bytes=400,
    pending_ttl=300,
    status_retention=600,
    status_history=5,
)
NAMES = ["a", "b", "c", "a/service/s", "b/service/s"]
CHANNELS = ["m/t", "m/", "e/x", "a/y", "m/t/meta", "twin/os", "cmd/op", "cmd/op/1", "signal/z", "config", "odd/channel"]


def topic_id(dice: random.Random) -> str:
    name = dice.choice(NAMES)
    return f"device/{name}" if "service" in name else dice.choice([f"device/{name}//", f"cell/{name}//"])


def registration(dice: random.Random) -> bytes:
    members = {"@type": dice.choice(["child-device", "child-device", "service", "thing"])}
    if dice.random() < 0.6:
        members["@parent"] = topic_id(dice)
    if dice.random() < 0.1:
        members["@id"] = dice.choice(["x", "a/b"])
    return dice.choice([json.dumps(members | {"name": dice.randint(1, 2)}).encode()] * 5 + [b"", b"{"])


def log(seed: int, count: int) -> Iterator[Record]:
    """Messages, requests, ticks and rubbish for two roots; the clock of the broker sometimes goes back."""
    dice, at = random.Random(seed), 1_700_000_000_000
    for offset in range(count):
        at += dice.choice([-3, 0, 0, 1, 2, 5, 20, 60])
        root, entity = dice.choice(["te", "te", "gw", "no"]), topic_id(dice)
        kind = dice.choices(["registration", "data", "request", "tick", "rubbish"], [30, 60, 5, 4, 1])[0]
        if kind == "tick":
            yield Record(1, offset, at, None, b"", (("kind", dice.choice([b"tick", b"flush"])),))
        elif kind == "request":
            method = dice.choice(["POST", "DELETE", "PATCH"])
            body = {"@topic-id": entity, "@type": "child-device"} if method == "POST" else {"@parent": topic_id(dice)}
            path = f"/{root}/v1/entities" + ("" if method == "POST" else f"/{entity}")
            request = {"method": method, "path": path, "headers": {}, "body": body, "correlation": f"c{offset}"}
            yield Record(1, offset, at, b"te", json.dumps(request).encode(), (("kind", b"request"),))
        elif kind == "rubbish":
            yield Record(1, offset, at, None, b"\xff", dice.choice([(), (("kind", b"odd"),), (("topic", b"\xff"),)]))
        else:
            topic = f"{root}/{entity}" + ("" if kind == "registration" else "/" + dice.choice(CHANNELS))
            value = registration(dice) if kind == "registration" else dice.choice([b'{"v": 1}', b"{", b"", b"\xff"])
            retain = dice.choice([b"0", b"1"])
            yield Record(1, offset, at, root.encode(), value, (("topic", topic.encode()), ("retain", retain)))


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_change_neither_outputs_nor_state(seed: int) -> None:
    print(f"replay with HEADRACE_SIM_SEED={seed}")
    records = list(log(seed, STEPS // len(SEEDS)))
    plain, outputs = MemoryState(), list[Emission]()
    stage = RegistrationStage(CONFIG)
    for record in records:
        stage.apply(plain, record, outputs.append)
    crashed = Simulation(lambda: RegistrationStage(CONFIG), records, seed, late_writers=True).run()
    assert crashed.crashes > 10
    assert crashed.distinct() == [(e.topic, header(e.headers, "id"), e.value) for e in outputs]
    assert crashed.store.snapshot() == plain.snapshot()
    gauges = stage.gauges(plain)
    whole = ("passed", "replayed", "applied", "no_effect", "replaced", "pending")
    parts = ("refused.", "lost.", "discarded.")
    assert gauges["in"] == sum(n for name, n in gauges.items() if name in whole or name.startswith(parts))
    assert min(gauges[name] for name in ("passed", "replayed", "applied", "replaced")) > 0
    lost = sum(n for name, n in gauges.items() if name.startswith(("refused.", "lost.")))
    assert sum(e.topic == "dead-letter" for e in outputs) == lost + gauges.get("unreadable", 0)
