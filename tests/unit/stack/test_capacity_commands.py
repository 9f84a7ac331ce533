"""`headrace capacity` against a coordinator in this process, and against a real PostgreSQL."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace import cli
from headrace.kafka import free_port
from headrace_capacity.coordinator import Coordinator, CoordinatorStore
from headrace_capacity.postgres import PostgresStore
from headrace_core.capacity.errors import CapacityConfig, LeaseStoreUnavailable, UnknownResource
from headrace_core.capacity.protocol import Claim, LeaseRequest, ResourceConfig
from headrace_core.errors import HeadraceError
from tests.support.lease_servers import TOKEN
from tests.support.postgres import server

runner = CliRunner()


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinatorStore]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    running = Coordinator(TOKEN, cold=True).start()
    monkeypatch.setenv("HEADRACE_CAPACITY_STORE", running.address)
    monkeypatch.setenv("HEADRACE_CAPACITY_TOKEN_FILE", str(tmp_path / "token"))
    store = CoordinatorStore(running.address, TOKEN)
    store.provision(ResourceConfig(resource="db", shared_capacity=100, factor=10, ttl_ms=60_000))
    yield store
    store.close()
    running.stop()


def invoke(*words: str) -> Result:
    return runner.invoke(cli.app, ["capacity", *words], catch_exceptions=True)


def test_the_status_tells_who_holds_what(coordinator: CoordinatorStore) -> None:
    coordinator.sync(LeaseRequest(resource="db", owner="writer-1", seq=1, want=4, used=35), 5_000)
    said = invoke("status", "db").output
    assert "shared 100, granted 40, used 35 units/s" in said
    assert "writer-1" in said
    found = json.loads(invoke("status", "db", "--json").output)
    assert (found["granted"], found["owners"][0]["owner"]) == (40, "writer-1")


def test_a_decrease_is_in_force_when_its_owners_confirmed_it(coordinator: CoordinatorStore) -> None:
    first = coordinator.sync(LeaseRequest(resource="db", owner="a", seq=1, want=10), 5_000)
    waited = invoke("set", "db", "--shared", "50", "--wait", "0.1")
    assert (waited.exit_code, "not yet in force" in waited.output) == (1, True)
    held = [Claim(grant.partition, grant.epoch) for grant in first.grants]
    confirmed = {"held": tuple(held[:5]), "released": tuple(held[5:]), "config_version": 2}
    coordinator.sync(LeaseRequest(resource="db", owner="a", seq=2, want=10, **confirmed), 5_000)  # type: ignore[arg-type]
    waited = invoke("set", "db", "--shared", "60", "--ramp", "5/1000", "--wait", "5")
    assert (waited.exit_code, "configuration 3 of db is in force" in waited.output) == (0, True)


def test_a_change_that_a_store_keeps_in_memory_is_told_with_what_that_means(coordinator: CoordinatorStore) -> None:
    assert coordinator.status("db").config_version == 1
    said = " ".join(invoke("set", "db", "--shared", "50").output.split())
    assert "keeps it in memory" in said
    assert "Change that too" in said
    with server() as url:
        kept = PostgresStore(url)
        kept.provision(ResourceConfig(resource="db", shared_capacity=100, factor=10))
        said = invoke("set", "db", "--shared", "50", "--store", url).output
        kept.close()
    assert said.startswith("configuration 2 of db is in force")
    assert "in memory" not in said


def test_how_partitions_change_their_owner_can_be_changed(coordinator: CoordinatorStore) -> None:
    long = ResourceConfig(resource="slow", shared_capacity=10, factor=10, quarantine_ms=60_000)
    coordinator.provision(long)

    def given_back_and_taken() -> int:
        """Partitions that one gives back and another gets at once."""
        grants = coordinator.sync(LeaseRequest(resource="slow", owner="a", seq=next(numbers), want=1), 5_000).grants
        freed = tuple(Claim(grant.partition, grant.epoch) for grant in grants)
        back = {"released": freed, "inherits": True}
        coordinator.sync(LeaseRequest(resource="slow", owner="a", seq=next(numbers), **back), 5_000)  # type: ignore[arg-type]
        ask = LeaseRequest(resource="slow", owner="b", seq=next(numbers), want=1, inherits=True)
        return len(coordinator.sync(ask, 5_000).grants)

    numbers = itertools.count(1)
    assert given_back_and_taken() == 0
    assert invoke("set", "slow", "--handover", "inherit").exit_code == 0
    assert given_back_and_taken() == 1
    assert invoke("set", "slow", "--handover", "inherits").exit_code == 2


def test_a_pause_reaches_the_writers(coordinator: CoordinatorStore) -> None:
    assert invoke("pause", "db", "60000").exit_code == 0
    assert coordinator.sync(LeaseRequest(resource="db", owner="a", seq=1, want=1), 5_000).pause_ms > 0


def test_what_is_wrong_is_said(coordinator: CoordinatorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(invoke("status", "none").exception, UnknownResource)
    assert isinstance(invoke("set", "db", "--shared", "-1").exception, CapacityConfig)
    assert "nothing to change" in invoke("set", "db").output
    assert "--ramp is STEP/MS" in invoke("set", "db", "--ramp", "5").output
    assert "--shared is an integer" in invoke("set", "db", "--shared", "many").output
    assert isinstance(invoke("status", "db", "--store", "ftp://x").exception, CapacityConfig)
    monkeypatch.delenv("HEADRACE_CAPACITY_TOKEN_FILE")
    assert isinstance(invoke("status", "db").exception, CapacityConfig)
    assert coordinator.status("db").config_version == 1


@pytest.mark.usefixtures("coordinator")
def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("another token")
    refused = invoke("status", "db", "--token-file", str(tmp_path / "other"))
    assert isinstance(refused.exception, LeaseStoreUnavailable)
    assert "wrong token" in str(refused.exception)
    (tmp_path / "other").write_bytes(b"\xff")
    for file in ("other", "nothing", ""):
        unread = invoke("status", "db", "--token-file", str(tmp_path / file))
        assert isinstance(unread.exception, CapacityConfig)
        assert unread.exception.field == "--token-file"
    (tmp_path / "other").write_text("\n")
    unread = invoke("status", "db", "--token-file", str(tmp_path / "other"))
    assert "a coordinator needs its token" in str(unread.exception)


def test_calibration_finds_the_lowest_cost_at_which_the_latency_holds() -> None:
    """One connection and 5 ms an operation: it takes 200 of them a second at most, so 2000 units/s cost 10 at least."""
    with server() as url:
        words = ["--url", url, "--sql", "SELECT pg_sleep(0.005)", "--capacity", "2000", "--target-ms", "200"]
        found = invoke(
            "calibrate", *words, "--connections", "1", "--seconds", "1", "--percentile", "95", "--first", "6"
        )
        assert found.exit_code == 0, found.output
        last = found.output.splitlines()[-1]
        assert int(last.split()[1].rstrip(":")) > 6
        broken = invoke("calibrate", *words[:2], "--sql", "SELECT nothing", *words[4:])
        assert isinstance(broken.exception, HeadraceError)
        assert "column" in str(broken.exception)
    gone = f"postgresql://a@127.0.0.1:{free_port()}/a"
    assert isinstance(invoke("calibrate", "--url", gone, *words[2:]).exception, HeadraceError)
