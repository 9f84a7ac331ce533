"""A worker with an instance name takes its own place again at once, and leaves it at once when told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.test_runner import assert_exact, records
from tests.support.streams_worker import StreamsWorker, produce, read_all, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

SESSION_S, SOON_S = 60, 35  # 60 is the longest that the setting takes


def named(name: str, kafka: str, prefix: str, home: Path) -> StreamsWorker:
    """A worker whose session would outlast the waits of the test."""
    one = StreamsWorker(kafka, prefix, home / name, home / f"{name}.log")
    one.settings |= {"INSTANCE": name, "SESSION_TIMEOUT_S": str(SESSION_S), "CHUNK_RECORDS": "500"}
    return one


def soon(act: Callable[[], object], wait: Callable[[], object], what: str) -> None:
    """What comes after `act` comes before a session ends; what a slow machine needs that long for is done again."""
    for _ in range(3):
        act()
        since = time.monotonic()
        wait()
        took_s = time.monotonic() - since
        print(f"{what}: {took_s:.1f} s")
        if took_s < SOON_S:
            return
    raise AssertionError(f"{what}: only when the session had ended, each time")


def test_an_instance_is_back_before_its_session_ends_and_a_second_one_takes_over(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    total = 30_000
    first, second = (named(name, kafka, topic_prefix, tmp_path) for name in ("one", "two"))
    try:
        first.start().wait_ready()
        produce(kafka, topic_prefix + "raw", records(total // 3))
        until(lambda: first.applied() > 0, "work under way")
        soon(first.kill, lambda: first.start().wait_ready(), "ready after kill -9")
        first.wait_applied(total // 3)
        second.start().wait_ready()
        until(lambda: 0 < second.applied() < total // 3, "partitions are shared")
        produce(kafka, topic_prefix + "raw", records(total // 3, start=total // 3))
        until(lambda: first.applied() + second.applied() == 2 * total // 3, "both at work")

        def leave() -> None:
            if first.running.poll() is not None:
                first.start().wait_ready()
                until(lambda: second.applied() < 2 * total // 3, "partitions are shared")
            assert first.terminate() == 0

        soon(leave, lambda: second.wait_applied(2 * total // 3), "all partitions are the second one's")
        produce(kafka, topic_prefix + "raw", records(total // 3, start=2 * total // 3))
        second.wait_applied(total)
        assert second.terminate() == 0
    finally:
        first.end()
        second.end()
    assert_exact(read_all(kafka, topic_prefix + "routed"), total)
