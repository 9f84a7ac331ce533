"""Runs a batcher vector against the real engine under a virtual clock (see `format` of vectors/capacity.json)."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.buffer import Waiter
from headrace_core.capacity.config import BatcherConfig, LeaseConfig
from headrace_core.capacity.core import BatcherCore, Failure
from headrace_core.capacity.errors import BatcherError
from headrace_core.capacity.events import Event
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.operation import Batch, Operation, Phase, Watcher
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.protocol import Grant, LeaseReply
from headrace_core.capacity.resources import ProvisionedResource, Resource, SharedResource
from headrace_core.capacity.shared_config import partition_worth
from headrace_core.capacity.units import amount

FOREVER_MS = 10**12


class TraceStore(MemoryStore):
    """A store whose clock stands still: the trace itself says what is granted."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)


def reply_of(shared: SharedResource, grants: list[Grant], ttl_ms: int) -> LeaseReply:
    """A store's reply that changes no capacity."""
    return LeaseReply(
        grants=tuple(grants),
        ttl_ms=ttl_ms,
        shared_capacity=amount(shared.shared_units),
        reserved_capacity=amount(shared.reserve_units),
        max_capacity=amount(shared.max_units),
    )


@dataclass
class Trace:
    batches: list[tuple[int, str, list[str]]] = field(default_factory=list)
    costs: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    errors: list[tuple[Any, str]] = field(default_factory=list)
    events: list[tuple[int, Event]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    max_running: int = 0


class Driver:
    """One instance, one loop; callbacks take `callback_ms` of virtual time."""

    def __init__(self, config: dict[str, Any], pacing: str) -> None:
        settings = dict(config.get("batcher", {}))
        permille = settings.pop("headroom_permille", 0)
        emit = frozenset({"batch", "flush", "request"})
        self.config = BatcherConfig(**settings, headroom=permille / 1000, pacing=pacing, emit=emit)  # type: ignore[arg-type]
        self.limiter = self._make_limiter(config.get("limiter"))
        self.core = BatcherCore(self.config, self.limiter)
        self.watcher_config: dict[str, dict[str, Any]] = config.get("watchers", {})
        self.watchers: dict[str, Watcher] = {}
        self.names: dict[Watcher, str] = {}
        self.ops: dict[str, Operation] = {}
        self.waiters: dict[Waiter, Any] = {}
        self.returns: list[tuple[int, int, Batch]] = []
        self.next_ms: int | None = None
        self.now = 0
        self.touched = False
        self.trace = Trace()

    # Parts

    def _make_limiter(self, config: dict[str, Any] | None) -> Resource | None:
        if config is None:
            return None
        if config["kind"] == "provisioned":
            return ProvisionedResource(config["capacity"])
        settings = {key: value for key, value in config.items() if key != "kind"}
        self.lease = LeaseConfig(ttl_ms=FOREVER_MS, renew_interval_ms=1000)
        shared = SharedResource(TraceStore(), lease=self.lease, lease_reserve=False, **settings)
        self.agent = LeaseAgent(shared, "trace")
        self.epoch = 0
        return shared

    def _watcher(self, name: str | None) -> Watcher | None:
        if name is None:
            return None
        if name not in self.watchers:
            limits = self.watcher_config.get(name, {})
            kept = {k: v for k, v in limits.items() if k not in ("callback_ms", "on_batch")}
            self.watchers[name] = Watcher(lambda batch: batch, **kept)
            self.names[self.watchers[name]] = name
        return self.watchers[name]

    # Time

    def run_until(self, end_ms: int, *, inclusive: bool) -> None:
        """Let everything happen that is due before `end_ms`, or at it too."""
        while True:
            due = self._next_due()
            if due is None or due > end_ms or (due == end_ms and not inclusive):
                break
            self.now = max(self.now, due)
            self._settle()
        self.now = max(self.now, end_ms)

    def _next_due(self) -> int | None:
        times = [self.next_ms, self.returns[0][0] if self.returns else None, self.now if self.touched else None]
        return min((time for time in times if time is not None), default=None)

    def _settle(self) -> None:
        self.touched = False
        while self.returns and self.returns[0][0] <= self.now:
            self._callback_returns(heapq.heappop(self.returns)[2])
        step = self.core.step(self.now)
        self.next_ms = step.next_ms
        for failure in step.failures:
            self._fail(failure)
        for batch in step.batches:
            self._dispatch(batch)
        self._collect()

    def _dispatch(self, batch: Batch) -> None:
        name = self.names[batch.watcher]
        if not self.core.enter(batch, self.now * NS_PER_MS):
            return
        self.trace.batches.append((self.now, name, [op.payload for op in batch]))
        self.trace.costs.append((self.now, batch.cost_units))
        self.trace.max_running = max(self.trace.max_running, self.core.running)
        end_ms = self.now + self.watcher_config.get(name, {}).get("callback_ms", 0)
        heapq.heappush(self.returns, (end_ms, batch.seq, batch))
        self.next_ms = min(self.next_ms or batch.deadline_ms, batch.deadline_ms)

    def _callback_returns(self, batch: Batch) -> None:
        if self.watcher_config.get(self.names[batch.watcher], {}).get("on_batch") == "requeue":
            for op in batch:
                self._enqueue(op, f"cb:{op.payload}")
        self.core.leave(batch, self.now)
        self.touched = True
        assert batch.phase is Phase.RETURNED

    def _fail(self, failure: Failure) -> None:
        for op in failure.batch:
            self.trace.errors.append((f"op:{op.payload}", failure.error.code))

    def _collect(self) -> None:
        self.trace.events += [(self.now, event) for event in self.core.take_events()]
        for waiter in [w for w in self.waiters if w.done]:
            index = self.waiters.pop(waiter)
            if waiter.error is not None:
                self.trace.errors.append((index, waiter.error.code))

    # Steps

    def run(self, steps: list[dict[str, Any]]) -> Trace:
        for index, step in enumerate(steps):
            if step["do"] == "advance":
                self.run_until(step["to"], inclusive=True)
                continue
            self.run_until(step.get("t", self.now), inclusive=step["do"] == "probe")
            try:
                getattr(self, f"_do_{step['do']}")(step, index)
            except BatcherError as error:
                self.trace.errors.append((index, error.code))
            self.touched = self.touched or step["do"] != "probe"
            self._collect()
        return self.trace

    def _enqueue(self, op: Operation | None, index: Any, timeout_ms: int | None = None) -> None:
        try:
            waiter = self.core.enqueue(op, self.now, timeout_ms)
        except BatcherError as error:
            self.trace.errors.append((index, error.code))
            return
        if waiter is not None:
            self.waiters[waiter] = index

    def _do_enqueue(self, step: dict[str, Any], index: int) -> None:
        if "op" not in step:
            self._enqueue(None, index)
            return
        n = step.get("n", 1)
        for name in [step["op"]] if n == 1 else [f"{step['op']}{i}" for i in range(1, n + 1)]:
            if name not in self.ops:
                watcher = self._watcher(step.get("watcher"))
                self.ops[name] = Operation(watcher, step["cost"], name, step.get("batchable", False))
            self._enqueue(self.ops[name], index, step.get("timeout_ms"))

    def _do_start(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        self.core.start(self.now)

    def _do_start_limiter(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        assert self.limiter is not None
        self.limiter.start(self.now)

    def _do_flush(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        self.core.flush()

    def _do_pause(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        self.core.pause(self.now, step.get("retry_after_ms"))

    def _do_stop(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        self.core.stop(self.now, step.get("drain_ms", 0))

    def _do_request(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        assert self.limiter is not None
        self.limiter.request(step["n"])

    def _do_set_shared(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        assert self.limiter is not None
        self.limiter.set_shared_capacity(step["n"])

    def _do_set_reserved(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        assert self.limiter is not None
        self.limiter.set_reserved_capacity(step["n"])

    def _do_exchange(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        """The trace is the store: it renews what is held and grants what is offered, as far as wanted."""
        shared = self.limiter
        assert isinstance(shared, SharedResource)
        ask = self.agent.begin(self.now)
        kept = dict(ask.held)
        for partition in step.get("offer", []):
            if len(kept) < ask.want and partition not in kept:
                self.epoch += 1
                kept[partition] = self.epoch
        grants = [Grant(p, e, amount(partition_worth(shared.config, shared.shared_units, p))) for p, e in kept.items()]
        ttl_ms = step["until"] - self.now + self.lease.margin_ms if "until" in step else FOREVER_MS
        self.agent.receive(ask.seq, reply_of(shared, grants, ttl_ms), self.now, denied=step.get("deny", []))

    def _do_probe(self, step: dict[str, Any], index: int) -> None:  # noqa: ARG002
        probe: dict[str, Any] = {
            "buffer": self.core.buffered,
            "target": self.core.target,
            "inflight": self.core.inflight,
            "running": self.core.running,
            "raised": self.core.raised,
        }
        if self.limiter is not None:
            probe |= {"capacity": self.limiter.capacity, "max_capacity": self.limiter.max_capacity}
        self.trace.probes.append(probe)

    # What the vectors compare

    def max_cost_any_1s(self) -> Any:
        """The largest cost raised in any half-open second, per dimension if there are several."""
        best: dict[str, int] = {"": 0} if self.limiter is None else dict.fromkeys(self.limiter.max_units, 0)
        for end, _ in self.trace.costs:
            total: Counter[str] = Counter()
            for at, cost in self.trace.costs:
                if end - 1000 < at <= end:
                    total.update(cost)
            for name, value in total.items():
                best[name] = max(best.get(name, 0), value)
        return amount(best)


def check(driver: Driver, expect: dict[str, Any]) -> None:
    """Compare every key of `expect` with the trace; an unknown key is an error."""
    trace = driver.trace
    counts = Counter(event.name for _, event in trace.events)
    seen = Counter((at, event.name, repr(event.val)) for at, event in trace.events)
    for key, wanted in expect.items():
        if key == "batches":
            assert [list(batch) for batch in trace.batches] == wanted
        elif key == "batch_sizes":
            assert [[at, len(names)] for at, _, names in trace.batches] == wanted
        elif key == "errors":
            assert [list(error) for error in trace.errors] == wanted
        elif key == "probes":
            assert len(trace.probes) == len(wanted)
            for got, probe in zip(trace.probes, wanted, strict=True):
                assert {name: got[name] for name in probe} == probe
        elif key == "events_include":
            needed = Counter((at, name, repr(val)) for at, name, val in wanted)
            assert needed <= seen, sorted(seen)
        elif key == "events_exclude":
            assert not set(wanted) & set(counts)
        elif key == "event_counts":
            assert {name: counts[name] for name in wanted} == wanted
        elif key == "attempts":
            assert {name: driver.ops[name].attempt for name in wanted} == wanted
        elif key == "returned":
            assert [op.payload for op in driver.core.returned] == wanted
        elif key == "max_running":
            assert trace.max_running == wanted
        elif key == "max_cost_any_1s":
            assert driver.max_cost_any_1s() == wanted
        else:
            raise AssertionError(f"unknown expectation {key!r}")
