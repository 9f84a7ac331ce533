"""Queues of requests, as a task sends them: in order inside each, side by side, each end recorded before the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace_core.errors import ConfigError
from headrace_spark.database import Database
from headrace_spark.exits import Superseded
from headrace_spark.keyed import Exhausted
from headrace_spark.ledger import Ledger
from headrace_spark.patience import Patience
from headrace_spark.sending import Carried, Carrier, Packed, failed, shares
from headrace_spark.sinks.port import Batch, SinkDown
from headrace_spark.transforms.rows import Request, Row
from tests.unit.spark.fakes import Killed

BATCH = Batch("q", 3)
ROW = Row("te/device/a//", "m", 1, 1, "0" * 32, 1.0, False)


class Sender:
    """Notes who is at work, and fails where it is told to."""

    def __init__(
        self, fail: dict[str, BaseException] | None = None, waits: Callable[[str], object] = lambda _: None
    ) -> None:
        self.fail, self.waits = fail or {}, waits
        self.sent: list[str] = []
        self.busy: set[int] = set()
        self.most = 0
        self.turn = threading.Lock()

    def stands(self, end: str) -> bool:
        return end != "again"

    def send(self, batch: Batch, one: Packed) -> tuple[str, int]:
        assert batch == BATCH
        with self.turn:
            assert one.partition not in self.busy, "two of one queue"
            self.busy.add(one.partition)
            self.most = max(self.most, len(self.busy))
            self.sent.append(one.request.id)
        self.waits(one.request.id)
        with self.turn:
            self.busy.discard(one.partition)
        if one.request.id in self.fail:
            raise self.fail[one.request.id]
        return f"end of {one.request.id}", 1


def queue(lane: int, count: int, rows: int = 1) -> list[Packed]:
    return [Packed("t", lane, 0, Request(f"{lane}:{n}", [ROW] * rows, rows)) for n in range(count)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(Database(f"sqlite://{tmp_path}/state.db"), "w")
    found.prepare()
    return found


def carrier(sender: Sender, ledger: Ledger, at_once: int = 4) -> Carrier:
    return Carrier(sender, ledger, Patience(0), at_once)


@pytest.mark.parametrize("at_once", [1, 4])
def test_every_request_goes_out_once_in_the_order_of_its_queue(ledger: Ledger, at_once: int) -> None:
    together = threading.Barrier(at_once)
    firsts = {f"{lane}:0" for lane in range(at_once)}
    sender = Sender(waits=lambda name: together.wait(60) if name in firsts else None)
    queues = [queue(lane, 5) for lane in range(6)]
    found = carrier(sender, ledger, at_once).carry(BATCH, queues)
    names = [one.request.id for own in queues for one in own]
    assert sorted(sender.sent) == sorted(names)
    for lane in range(6):
        assert [name for name in sender.sent if name.startswith(f"{lane}:")] == [f"{lane}:{n}" for n in range(5)]
    assert found.ends == {name: f"end of {name}" for name in names} == ledger.sent(BATCH)
    assert (found.retries, sender.most) == (dict.fromkeys(names, 1), at_once)


def test_what_is_recorded_does_not_go_out_again(ledger: Ledger) -> None:
    sender = Sender({"0:2": Killed()})
    with pytest.raises(Killed):
        carrier(sender, ledger).carry(BATCH, [queue(0, 4)])
    ledger.record_sent(BATCH, "1:0", "again")
    later = Sender()
    found = carrier(later, ledger).carry(BATCH, [queue(0, 4), queue(1, 1)])
    assert sorted(later.sent) == ["0:2", "0:3", "1:0"]
    assert len(found.ends) == 5
    assert found.ends["1:0"] == "end of 1:0", "what does not stand goes again"


def test_after_a_failure_no_queue_goes_on(ledger: Ledger) -> None:
    halt = threading.Event()
    sender = Sender({"0:0": SinkDown("gone")}, waits=lambda name: name == "0:0" or halt.wait(60))
    with pytest.raises(SinkDown, match="gone"):
        Carrier(sender, ledger, Patience(0), 4, halt).carry(BATCH, [queue(0, 9), queue(1, 9), queue(2, 9)])
    assert "0:0" in sender.sent
    assert set(sender.sent) <= {"0:0", "1:0", "2:0"}
    assert sender.busy == set(), "what was at work has ended"


@pytest.mark.parametrize(
    "error", [SinkDown("down"), ConfigError("sink", "401"), Exhausted("2 rows"), Superseded("another")]
)
def test_an_error_of_the_job_comes_back_in_the_report(error: Exception) -> None:
    blob = msgspec.msgpack.encode(failed(error))  # type: ignore[arg-type]
    with pytest.raises(type(error)) as caught:
        msgspec.msgpack.decode(blob, type=Carried).check()
    assert (str(caught.value), caught.value.__dict__) == (str(error), error.__dict__)
    Carried().check()


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_the_tasks_share_the_queues_evenly(count: int) -> None:
    queues = [queue(lane, 3, rows) for lane, rows in enumerate([9, 1, 1, 1, 5, 4, 1])]
    parts = shares(queues, count)
    assert len(parts) == min(count, len(queues))
    assert sorted(one[0].partition for part in parts for one in part) == list(range(7))
    loads = [sum(len(one.request.rows) for own in part for one in own) for part in parts]
    assert max(loads) <= max(27, -(-66 // count) + 3)


def test_a_worker_of_an_earlier_start_sends_nothing(tmp_path: Path, ledger: Ledger) -> None:
    def of(run: str) -> Ledger:
        return Ledger(Database(f"sqlite://{tmp_path}/state.db"), "w", run=run)

    with pytest.raises(Superseded):
        of("first").dispatch(1, 1, 1)
    ledger.claim("first")
    of("first").dispatch(1, 1, 1)
    ledger.claim("second")
    with pytest.raises(Superseded):
        of("first").dispatch(2, 1, 1)
    of("second").dispatch(3, 1, 1)
    ledger.dispatch(4, 1, 1)  # where only the driver sends


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [one.name for one in threading.enumerate() if one.name.startswith("headrace-queue")] == []
