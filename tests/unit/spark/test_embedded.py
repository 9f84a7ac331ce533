"""The coordinator inside the driver: driver and workers lease from it, with a token of this run, until the job ends."""

from __future__ import annotations

import pickle
import socket

import pytest

from headrace_capacity.stores import open_store
from headrace_core.capacity.errors import LeaseStoreUnavailable
from headrace_core.errors import ConfigError
from headrace_spark import capacity, embedded
from headrace_spark.settings import check
from tests.unit.spark.fakes import job


def test_all_who_have_the_tasks_settings_share_it_and_others_do_not() -> None:
    with embedded.leases(job(lease_store="embedded", resource="r")) as found:
        assert found.lease_store.startswith("tcp://127.0.0.1:")
        sent = pickle.loads(pickle.dumps(found))
        driver, worker = capacity.in_driver(found), capacity.in_every_process(sent)()
        try:
            assert [one.run(5, lambda at_ns: at_ns > 0) for one in (driver, worker)] == [True, True]
            ask = capacity.status(found)
            assert ask is not None
            assert len(ask().owners) == 2
        finally:
            driver.stop()
            worker.stop()
        stranger = open_store(found.lease_store, token="guessed")
        with pytest.raises(LeaseStoreUnavailable):
            stranger.status("r")
        address = found.lease_store
    with pytest.raises(OSError):
        socket.create_connection((address.removeprefix("tcp://").partition(":")[0], int(address.rpartition(":")[2])), 5)


def test_every_run_has_a_token_of_its_own() -> None:
    tokens = set()
    for _ in range(2):
        with embedded.leases(job(lease_store="embedded")) as found:
            tokens.add(found.lease_token)
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 32


def test_other_stores_stay_as_they_are() -> None:
    settings = job(lease_store="postgresql://h/d")
    with embedded.leases(settings) as found:
        assert found is settings


def test_on_a_cluster_it_needs_an_address_that_executors_can_reach() -> None:
    with pytest.raises(ConfigError, match=r"spark\.driver\.host"):
        check(job(lease_store="embedded", master="spark://m:7077"))
    check(job(lease_store="embedded", master="spark://m:7077", spark={"spark.driver.host": "driver"}))


def test_a_host_that_is_not_this_one_is_a_matter_of_configuration() -> None:
    unknown = job(lease_store="embedded", spark={"spark.driver.host": "192.0.2.1"})
    with pytest.raises(ConfigError, match="cannot listen"), embedded.leases(unknown):
        pass
