"""One ledger for many processes: no window above the capacity, whoever dies, and nobody starves."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace_core.capacity.errors import TooExpensive
from headrace_spark.exits import Stalled
from headrace_spark.host_pacing import SECOND_NS, HostPacer
from tests.unit.spark.test_pacing import largest_window


def send(path: Path, log: Path, seed: int, until_ns: int) -> None:
    """A process that sends all it can and writes down each dispatch."""
    dice, pacer = random.Random(seed), HostPacer(path, 500)
    with log.open("a", buffering=1) as file:
        while time.monotonic_ns() < until_ns:
            cost = dice.choice([1, 5, 20, 100])
            pacer.run(cost, lambda at_ns, cost=cost: file.write(f"{at_ns} {cost}\n"))


def test_processes_that_are_killed_and_started_again_keep_to_one_capacity(tmp_path: Path) -> None:
    spawn, path, log = multiprocessing.get_context("fork"), tmp_path / "ledger", tmp_path / "log"
    end_ns, dice = time.monotonic_ns() + 6 * SECOND_NS, random.Random(5)
    log.touch()
    alive = [spawn.Process(target=send, args=(path, log, seed, end_ns)) for seed in range(3)]
    for one in alive:
        one.start()
    for seed in range(3, 9):
        time.sleep(0.7)
        victim = alive.pop(dice.randrange(3))
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join()
        alive.append(spawn.Process(target=send, args=(path, log, seed, end_ns)))
        alive[-1].start()
    for one in alive:
        one.join(60)
        assert one.exitcode == 0
    out = sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines())
    assert 0.8 * 500 <= largest_window(out) <= 500


def free(path: Path) -> bool:
    """Nobody stands at the head."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_the_order_of_arrival_is_kept_even_by_one_that_needs_all(tmp_path: Path) -> None:
    pacer = HostPacer(tmp_path / "ledger", 100)
    pacer.run(60, lambda _: None)
    with ThreadPoolExecutor() as threads:
        large = threads.submit(pacer.run, 100, lambda at: at)
        while free(tmp_path / "ledger"):
            time.sleep(0.001)
        small = threads.submit(pacer.run, 1, lambda at: at)
        assert small.result() >= large.result() + SECOND_NS


@pytest.mark.parametrize("content", [None, b"", b"cut", bytes(32)])
def test_without_a_ledger_that_can_be_believed_nothing_goes_out_for_a_second(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "ledger").write_bytes(content)
    began = time.monotonic_ns()
    assert HostPacer(tmp_path / "ledger", 100).run(1, lambda at: at) >= began + SECOND_NS


def test_a_process_that_starts_knows_what_went_out_before(tmp_path: Path) -> None:
    first = HostPacer(tmp_path / "ledger", 100).run(100, lambda at: at)
    later = HostPacer(tmp_path / "ledger", 100)
    assert later.used() == 100
    assert later.run(1, lambda at: at) >= first + SECOND_NS


def test_a_cost_that_can_never_fit_is_refused_and_a_failure_reaches_the_caller(tmp_path: Path) -> None:
    pacer = HostPacer(tmp_path / "ledger", 10)
    assert pacer.used() == 0
    with pytest.raises(TooExpensive):
        pacer.run(11, lambda _: None)

    def fail(_: int) -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        pacer.run(1, fail)
    assert pacer.run(1, lambda _: "fine") == "fine"


def test_a_pause_holds_for_all_processes_and_a_longer_one_extends_it(tmp_path: Path) -> None:
    one, other = (HostPacer(tmp_path / "ledger", 1000) for _ in range(2))
    one.run(1, lambda at: at)
    began = time.monotonic_ns()
    one.pause(700, "resource")
    other.pause(900, "resource")
    assert other.run(1, lambda at: at) >= began + 900_000_000
    began = time.monotonic_ns()
    one.pause(600_000, "instance")
    assert other.run(1, lambda at: at) < began + 600 * SECOND_NS, "a pause of one instance holds there alone"


def test_no_pause_is_shorter_than_what_was_asked_for_not_even_by_a_part_of_a_millisecond(tmp_path: Path) -> None:
    for number in range(50):
        began = time.monotonic_ns()
        HostPacer(tmp_path / f"{number}", 100).pause(900, "resource")
        until = int.from_bytes((tmp_path / f"{number}.pause").read_bytes()[16:], "little")
        assert until >= began + 900_000_000


def test_a_pause_of_an_earlier_start_of_the_machine_is_none(tmp_path: Path) -> None:
    (tmp_path / "ledger.pause").write_bytes(bytes(16) + (1 << 62).to_bytes(8, "little"))
    assert HostPacer(tmp_path / "ledger", 100).run(1, lambda at: at) > 0


def test_a_charge_above_the_cost_is_spent(tmp_path: Path) -> None:
    pacer = HostPacer(tmp_path / "ledger", 100)
    at_ns = pacer.settled(10, lambda at: at, lambda _: 100)
    assert pacer.settled(1, lambda at: at, lambda _: None) >= at_ns + SECOND_NS


def test_what_waits_while_nothing_goes_out_fails_with_the_reason(tmp_path: Path) -> None:
    pacer = HostPacer(tmp_path / "ledger", 100, max_wait_ms=300)
    pacer._max_wait_ns *= 10  # the first second is no stall
    pacer.run(1, lambda at: at)
    pacer._max_wait_ns //= 10
    pacer.pause(600_000, "resource")
    with pytest.raises(Stalled, match=r"300 ms \(max_wait_ms\): paused"):
        HostPacer(tmp_path / "ledger", 100, max_wait_ms=300).run(1, lambda at: at)
