"""The examples of the lease store and its pure functions: kinds `lease`, `share`, `worth` and `ramp`.

The kind `scenario` is in test_capacity_scenarios.py, the kinds `batcher`, `agent` and `pause` in
test_capacity_batcher_vectors.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import Claim, LeaseReply, LeaseRequest, RampSetting, ResourceConfig
from headrace_core.capacity.ramp import steady
from headrace_core.capacity.shares import Wish, shares
from headrace_core.capacity.worth import worths

VECTORS = json.loads((Path(os.environ.get("HEADRACE_VECTORS", "tests/vectors")) / "capacity.json").read_text())[
    "vectors"
]


def of_kind(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == kind], ids=lambda v: v["id"])


@of_kind("share")
def test_share(vector: dict[str, Any]) -> None:
    wishes = [
        Wish(o["id"], o["want"], o.get("weight", 1), o.get("held", 0), o.get("head", 0), o.get("head_since"))
        for o in vector["config"]["owners"]
    ]
    assert shares(vector["config"]["partitions"], wishes) == vector["expect"]["shares"]


@of_kind("worth")
def test_worth(vector: dict[str, Any]) -> None:
    config = vector["config"]
    found = worths(config["shared_capacity"], factor=config.get("factor", 1), partitions=config.get("partitions"))
    assert found == vector["expect"]["worth"]


@of_kind("ramp")
def test_ramp(vector: dict[str, Any]) -> None:
    setting, ramp = RampSetting(**vector["config"]["ramp"]), steady(vector["config"]["shared_capacity"])
    changes = [(step["t"], step["n"]) for step in vector["steps"]]
    for at, expected in vector["expect"]["effective"]:
        while changes and changes[0][0] <= at:
            ramp = ramp.change(setting, *changes.pop(0))
        assert ramp.effective(setting, at) == expected, f"at {at}"


@of_kind("lease")
def test_lease(vector: dict[str, Any]) -> None:
    driver = Driver(vector["config"]["lease"])
    for step in vector["steps"]:
        driver.run(step)
    expected = vector["expect"]["replies"]
    assert len(driver.seen) == len(expected)
    for at, (seen, wanted) in enumerate(zip(driver.seen, expected, strict=True)):
        assert {name: seen[name] for name in wanted} == wanted, f"reply {at}"


class Driver:
    """Acts for every owner, as the `format` member of the vectors says."""

    def __init__(self, lease: dict[str, Any]) -> None:
        self.now_ms, self.seen = 0, list[dict[str, Any]]()
        self.store = MemoryStore(lambda: self.now_ms)
        factor = lease.get("factor", 1)
        shared = lease["shared_capacity"] if "shared_capacity" in lease else lease["partitions"] * factor
        names = ("ttl_ms", "quarantine_ms", "max_instances")
        self.store.provision(
            ResourceConfig(
                resource="r",
                shared_capacity=shared,
                factor=factor,
                ramp=RampSetting(**lease["ramp"]) if "ramp" in lease else None,
                **{name: lease[name] for name in names if name in lease},
            )
        )
        self.held = dict[str, list[Claim]]()
        self.dropped = dict[str, list[Claim]]()
        self.replies = list[LeaseReply]()
        self.seqs = dict[str, int]()
        self.top_epoch = -1

    def run(self, step: dict[str, Any]) -> None:
        self.now_ms = step["t"]
        match step["do"]:
            case "restart":
                self.store.restart()
            case "set_shared":
                self.store.configure("r", shared_capacity=step["n"])
            case "sync":
                self.sync(step)

    def sync(self, step: dict[str, Any]) -> None:
        owner = step["owner"]
        held, released = self.claims(owner, step)
        self.seqs[owner] = self.seqs.get(owner, 0) + 1
        options = {name: step[name] for name in ("weight", "head", "reserve", "pause_ms") if name in step}
        reply = self.store.sync(
            LeaseRequest(
                resource="r",
                owner=owner,
                seq=self.seqs[owner],
                want=step["want"],
                held=tuple(held),
                released=tuple(released),
                **options,
            )
        )
        self.replies.append(reply)
        self.seen.append(self.summary(owner, reply))
        if not step.get("lost_reply"):
            granted = [Claim(grant.partition, grant.epoch) for grant in reply.grants]
            self.dropped[owner] = [claim for claim in reply.drop if claim not in granted]
            self.held[owner] = sorted(granted + self.dropped[owner], key=lambda claim: claim.epoch)
        elif "as_of" not in step:
            self.held[owner] = held

    def claims(self, owner: str, step: dict[str, Any]) -> tuple[list[Claim], list[Claim]]:
        held = self.held.get(owner, [])
        if "as_of" in step:
            held = [Claim(grant.partition, grant.epoch) for grant in self.replies[step["as_of"]].grants]
        released: list[Claim] = []
        match step.get("release", 0):
            case "all":
                released = held
            case "dropped":
                released = self.dropped.get(owner, [])
            case int(number):
                released = held[len(held) - number :]
        return [claim for claim in held if claim not in released], released

    def summary(self, owner: str, reply: LeaseReply) -> dict[str, Any]:
        epochs = [grant.epoch for grant in reply.grants]
        new = sum(epoch > self.top_epoch for epoch in epochs)
        self.top_epoch = max([self.top_epoch, *epochs])
        return {
            "owner": owner,
            "grants": len(reply.grants),
            "new_grants": new,
            "drop": len(reply.drop),
            "worth": sum(grant.worth for grant in reply.grants),
            "reserve": reply.reserve_slot is not None,
            "shared_capacity": reply.shared_capacity,
            "pause_ms": reply.pause_ms,
        }
