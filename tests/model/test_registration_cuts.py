"""What a chunk of registration writes does not depend on where the log was cut (tests/support/cuts.py says why).

The tests see every family that is ever deleted, and fail if a chunk leaves out what comes and goes of just one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.registration import listing
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.items import PRIMARY
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Record
from tests.support.cuts import CHECKS, Make, check_keys, check_late_writers

CONFIG = RegistrationConfig(
    telemetry_cache_size=3, metadata_cache_bytes=300, pending_ttl=200, status_retention=300, status_history=2
)
NEVER_DELETED = b"cnt"
COME_AND_GO = bytes(sorted(set(PRIMARY) - set(NEVER_DELETED)))
Check = Callable[[Make, Sequence[Record], int, int | None], set[int]]


@pytest.fixture(autouse=True)
def few_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that moves (family H) are forgotten within a chunk."""
    monkeypatch.setattr(listing, "KEPT", 1)


def topic_id(dice: random.Random) -> str:
    return dice.choice(["device/a//", "device/b//", "cell/a//", "cell/b//", "device/a/service/s"])


def registration(dice: random.Random) -> bytes:
    members = {"@type": dice.choice(["child-device", "child-device", "service", "thing"]), "name": dice.randrange(2)}
    if dice.random() < 0.6:
        members["@parent"] = topic_id(dice)
    return json.dumps(members).encode()


def request(dice: random.Random, offset: int, at: int) -> Record:
    entity = topic_id(dice)
    method, rest, body = dice.choice([
        ("POST", "", {"@topic-id": entity, "@type": "child-device"}),
        ("DELETE", f"/{entity}", None),
        ("PUT", f"/{entity}/twin/k", dice.randrange(2)),
        ("PATCH", f"/{entity}", {"@parent": topic_id(dice)}),
        ("PATCH", f"/{entity}", {"@parent": "device/main//"}),
    ])  # fmt: skip
    value = {"method": method, "path": f"/te/v1/entities{rest}", "headers": {}, "body": body, "correlation": "c"}
    return Record(0, offset, at, b"te", json.dumps(value).encode(), (("kind", b"request"),))


def log(dice: random.Random, count: int) -> list[Record]:
    """Records in which every kind of item comes and goes soon."""
    found, at = [], 1_000
    for offset in range(count):
        at += dice.choice([0, 1, 5, 40])
        if dice.random() < 0.2:
            found.append(request(dice, offset, at))
            continue
        topic, payload = f"te/{topic_id(dice)}", b"1"
        if (what := dice.random()) < 0.3:
            topic, payload = dice.choice([topic, topic.rstrip("/")]), registration(dice)
        elif what < 0.45:
            payload = b""
        else:
            topic += "/" + dice.choice(["m/t", "e/x", "twin/k", "config", "cmd/op/1"])
            payload = dice.choice([b"1", b"2", b""])
        found.append(Record(0, offset, at, b"te", payload, (("topic", topic.encode()), ("retain", b"1"))))
    return found


def run(check: Check, seed: int, leaves_out: int | None = None) -> set[int]:
    return check(lambda: RegistrationStage(CONFIG), log(random.Random(seed), 120), seed, leaves_out)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_a_chunk_writes_the_keys_that_its_records_write_one_by_one(seed: int) -> None:
    run(check_keys, seed)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_late_writers_with_other_cuts_leave_no_ghost(seed: int) -> None:
    run(check_late_writers, seed)


@pytest.mark.parametrize("check", CHECKS)
def test_each_family_that_is_ever_deleted_is_seen_to_come_and_go(check: Check) -> None:
    assert bytes(sorted(set().union(*(run(check, seed) for seed in range(20))))) == COME_AND_GO


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("family", COME_AND_GO, ids=chr)
def test_leaving_out_what_comes_and_goes_of_one_family_is_seen(check: Check, family: int) -> None:
    def fails(seed: int) -> bool:
        try:
            run(check, seed, family)
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(50))
