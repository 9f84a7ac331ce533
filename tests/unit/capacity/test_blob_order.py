"""Leases on blobs: calls that their caller gave up (capacity.md 13.2, 16)."""

from __future__ import annotations

from typing import Any

from headrace_capacity.blob import AzureBlobStore
from headrace_core.capacity.protocol import LeaseRequest, ResourceConfig

CONFIG = ResourceConfig(resource="r", shared_capacity=20, factor=10, ttl_ms=15_000)


def test_a_call_that_runs_after_a_later_one_gives_back_nothing_and_grants_nothing() -> None:
    """It does not know what the later one was granted, so it would take that for unused."""
    store, nowhere = AzureBlobStore("", "leases"), Any
    store._seq["r"] = ("me", 2)
    late = LeaseRequest(resource="r", owner="me", seq=1, want=0)
    assert store._exchange(nowhere, CONFIG, late, 0).stale  # type: ignore[arg-type]
