"""The timeline stage: records of a command topic in; replies, parked, target, events out (timeline.md 13, 18).

Counters are items of the state, so they are exact after any crash:
`in` = `changed` + `noop` + `replayed` + `read` + `system` + `refused.*`.
Of `changed`: `created`, `moved`, `cancelled`, `extended`, `released`, `completed`, `given_back`; else polls and leases.
Beside that sum: `granted`, `parked`, `emitted`, `waits_served`, `waits_ended`, `clock_steps`, `expired` (leases that
ended by themselves, counted when something happens to the message next); of `system`: `taken` and `duplicates` (a time
buffer's records), `ticks`, of them `ticks_useless`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from headrace_core.stage import Emission, Headers, Histogram, Record
from headrace_core.state import State
from headrace_core.timeline import keys, wire
from headrace_core.timeline.buffer import Emitted
from headrace_core.timeline.clock_quality import median
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.due import next_timestamp
from headrace_core.timeline.engine import CHANGES, READS, Engine, Outcome
from headrace_core.timeline.events import events
from headrace_core.timeline.histograms import PREFIX, histograms, observed
from headrace_core.timeline.load import furthest
from headrace_core.timeline.polls import Parked, Served, with_bodies
from headrace_core.timeline.refusals import Refused, bad_request
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.source import TL_SOURCE
from headrace_core.timeline.statuses import by_status
from headrace_core.timeline.store import Change, Store, derive
from headrace_core.timeline.system import next_purge

STEP_MS = 60_000
"""A step ahead of the log's clock that is counted (section 12.4)."""
ALWAYS = (
    "in", "changed", "noop", "replayed", "read", "system", "granted", "parked_total", "emitted", "taken", "duplicates",
    "ticks", "ticks_useless", "expired",
)  # fmt: skip
DONE = {
    "create": "created", "move": "moved", "cancel": "cancelled", "extend": "extended", "release": "released",
    "complete": "completed", "give_back": "given_back",
}  # fmt: skip
"""Counters of what changes one message; grants are counted by message, as a poll brings several."""


class TimelineStage:
    """headrace_core.stage.Stage for the timeline `timeline`; between two calls it keeps hints only.

    `buffer_fixed`: who runs the stage reads and made the topics of its buffer, so no `configure` may name others.
    """

    primary = keys.PRIMARY

    def __init__(self, settings: Settings, timeline: str = "default", *, buffer_fixed: bool = False) -> None:
        self.name = f"timeline.{timeline}"
        self._settings = settings
        self._buffer_fixed = buffer_fixed
        self._engines: dict[int, Engine] = {}

    def engine(self, partition: int) -> Engine:
        if partition not in self._engines:
            self._engines[partition] = Engine(self._settings, partition)
        return self._engines[partition]

    def apply(self, state: State, record: Record, emit: Callable[[Emission], None]) -> None:
        """Apply one command record; see headrace_core.stage.Stage."""
        engine = self.engine(record.partition)
        counters = Counters(state)
        to = wire.address(record)
        op, args, refused = "", dict[str, Any](), None
        try:
            op, args = command = wire.read_command(record)
            refused = wire.routed_right(record, command, engine.settings(state)) or self._fixed(command)
        except Refused as error:
            refused = error
        reply = b"" if to is None else msgspec.msgpack.encode(to)
        outcome = engine.apply(state, record.append_ms, op, args, reply=reply, refused=refused)
        _count(counters, op, outcome)
        if outcome.before_ms and record.append_ms > outcome.before_ms + STEP_MS:
            counters.add("clock_steps")
        outputs = Outputs(self.name, record, emit)
        if outcome.effects:
            store = Store(state, {})
            context = Context(store, engine.settings(state), store.clock.now_ms, record.partition, [])
            for effect in outcome.effects:
                _put_out(outputs, context, effect)
        if engine.settings(state).events:
            for event in events(op, outcome.answer, outcome.due, outcome.own):
                outputs.own("events", event.id, wire.encode(event.about), (("event", event.name.encode()),))
        if outcome.answer.get("code") == "MISROUTED":
            outputs.misrouted()
        outputs.answer(to, op, outcome.answer)

    def again(self, state: State, record: Record) -> Emission | None:
        """See headrace_core.stage.RepeatsReplies (timeline.md 13.4)."""
        to, answer = wire.address(record), None
        if to is not None:
            with suppress(Refused):
                answer = self.engine(record.partition).again(state, *wire.read_command(record))
        if to is None or answer is None:
            return None
        found: list[Emission] = []
        Outputs(self.name, record, found.append).reply(to, answer)
        return found[0]

    def _fixed(self, command: wire.Command) -> Refused | None:
        if command.op == "buffer_in" and self._buffer_fixed and self._settings.buffer is None:
            return bad_request("op: buffer_in, and the timeline has no buffer")
        changes = command.args.get("settings") if command.op == "configure" and self._buffer_fixed else None
        if not isinstance(changes, dict) or "buffer" not in changes:
            return None
        same = changes["buffer"] == msgspec.to_builtins(self._settings.buffer)
        return None if same else Refused("SETTING_IMMUTABLE", setting="buffer")

    def derive(self, state: State, key: bytes, value: bytes) -> None:
        """Write the derived keys of one primary item."""
        derive(state, key, value)

    def next_due(self, state: State) -> int | None:
        """Log time (ms) of the next due work (3.4): a waiter's end, a waiter with a message, the time buffer."""
        context = self._seen(state)
        store = context.store
        times = [int.from_bytes(key[1:9]) for key in store.scan(b"v", b"v" + keys.END, 1)]
        clock = store.clock
        if clock.buffered and not clock.frozen:
            times += [int.from_bytes(key[1:9]) for key in store.scan(b"q", b"q" + keys.END, 1)]
        if clock.waiting and not clock.degraded and not clock.frozen:
            first = next_timestamp(context)
            times += [] if first is None else [first]
        return min(times, default=None)

    def oldest(self, state: State) -> int | None:
        """See headrace_core.stage.HasOldest: what is not parked and stands first; its lease may be active still."""
        return next_timestamp(self._seen(state))

    def statuses(self, state: State, at_ms: int) -> Mapping[str, int]:
        """See headrace_core.stage.HasStatuses (timeline.md 4, 19)."""
        return by_status(self._seen(state), at_ms)

    def furthest(self, state: State) -> int | None:
        """See headrace_core.stage.HasOldest."""
        return furthest(state)

    def histograms(self, state: State) -> Mapping[str, Histogram]:
        """See headrace_core.stage.HasHistograms (timeline.md 19)."""
        return histograms(state)

    def degraded(self, state: State) -> bool:
        """See headrace_core.stage.JudgesClocks (timeline.md 12.3)."""
        return Store(state, {}).clock.degraded

    def crossed(self, state: State, offsets: Sequence[int]) -> bool:
        """See headrace_core.stage.JudgesClocks."""
        limit = Engine(self._settings).settings(state).degrade_offset_ms
        return (abs(median(list(offsets))) >= limit) != self.degraded(state)

    def _seen(self, state: State) -> Context:
        """What the one partition of this stage looks like from outside, between two records."""
        partition, heads = None, dict[int, int]()
        if len(self._engines) == 1:
            partition, engine = next(iter(self._engines.items()))
            heads = dict(engine.heads)  # a copy: `state` may be older than the chunk that the engine is in
        store = Store(state, heads)
        return Context(store, self._settings, store.clock.now_ms, partition, [])

    def next_purge(self, state: State) -> int | None:
        """Log time (ms) from which the owner should append a `purge` (section 16)."""
        store = Store(state, {})
        settings = Engine(self._settings).settings(state)
        return next_purge(Context(store, settings, store.clock.now_ms, None, []))

    def gauges(self, state: State) -> Mapping[str, int]:
        """Counters and gauges by name."""
        clock = Store(state, {}).clock
        found = dict.fromkeys((*ALWAYS, *DONE.values()), 0)
        found |= {
            key[1:].decode(): int.from_bytes(raw)
            for key, raw in state.scan(b"n", b"n" + keys.END)
            if not key.startswith(PREFIX)
        }
        return found | {
            "clock": clock.now_ms,
            "degraded": int(clock.degraded),
            "frozen": int(clock.frozen),
            "pending": clock.live,
            "parked": clock.parked,
            "tombstones": clock.tombstones,
            "waiters": clock.waiting,
            "buffered": clock.buffered,
            "index_repairs": clock.repairs,
        }

    def forget(self) -> None:
        """Drop the hints."""
        for engine in self._engines.values():
            engine.forget()


class Counters:
    """Counters of the stage, one key each."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(self, name: str, by: int = 1) -> None:
        key = b"n" + name.encode()
        self._state.put(key, (int.from_bytes(self._state.get(key) or b"") + by).to_bytes(8))


def _count(counters: Counters, op: str, outcome: Outcome) -> None:
    counters.add("in")
    counters.add(kind := kind_of(op, outcome.answer))
    if kind == "changed" and op in DONE:
        counters.add(DONE[op])
    if op == "buffer_in" and outcome.answer["ok"]:
        counters.add("duplicates" if outcome.answer["duplicate"] else "taken")
    elif op == "tick":
        counters.add("ticks")
        if not outcome.effects:
            counters.add("ticks_useless")
    granted = len(outcome.answer.get("ids", ())) if op == "poll" and not outcome.answer.get("replayed") else 0
    granted += int(op == "lease" and outcome.answer["ok"] and not outcome.answer.get("replayed"))
    for effect in outcome.effects:
        match effect:
            case Served(_, answer, _):
                granted += len(answer["ids"])
                counters.add("waits_served" if answer["ids"] else "waits_ended")
            case Parked():
                counters.add("parked_total")
            case Emitted():
                counters.add("emitted")
    if granted:
        counters.add("granted", granted)
    now_ms = outcome.answer["now"]
    if expired := sum(_expired(change, now_ms) for change in (*outcome.due, *outcome.own)):
        counters.add("expired", expired)
    for name, by in observed((*outcome.due, *outcome.own), now_ms).items():
        counters.add(name, by)


def _expired(change: Change, now_ms: int) -> bool:
    """Whether the message had a lease that its holder neither completed nor gave up."""
    before = change.before
    return before is not None and before.lock is not None and not before.leased(now_ms)


def kind_of(op: str, answer: Answer) -> str:
    """The one counter that a record belongs to, beside `in`."""
    if answer.get("replayed"):
        return "replayed"
    if not answer["ok"]:
        return f"refused.{answer['code']}"
    if op in READS:
        return "read"
    if op not in CHANGES:
        return "system"
    return "noop" if answer.get("noop") else "changed"


class Outputs:
    """Emissions of one record, each with `id` = `<stage>:<partition>:<offset>:<index>`."""

    def __init__(self, stage: str, record: Record, emit: Callable[[Emission], None]) -> None:
        self.stage, self._record, self._emit = stage, record, emit
        self._index = 0

    def put(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = (), partition: int | None = None
    ) -> None:
        id_ = f"{self.stage}:{self._record.partition}:{self._record.offset}:{self._index}".encode()
        self._index += 1
        self._emit(Emission(topic, key, value, (*headers, ("id", id_)), partition))

    def own(self, kind: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """A record of the timeline's own `parked` or `events` topic."""
        self.put(f"{self.stage}.{kind}", key, value, headers)

    def misrouted(self) -> None:
        """Copied to the parked topic (section 9.1)."""
        self.own("parked", self._record.key, self._record.value, (("reason", b"MISROUTED"), *self._record.headers))

    def reply(self, to: wire.Address, answer: Answer) -> None:
        self.put("replies", to.correlation, wire.encode(answer), (("tl-reply-to", to.instance.encode()),), to.partition)

    def answer(self, to: wire.Address | None, op: str, answer: Answer) -> None:
        """The reply; a refusal without reply address goes to the events topic (section 18)."""
        if to is not None:
            self.reply(to, answer)
        elif not answer["ok"]:
            self.own("events", self._record.key, wire.encode({"op": op, **answer}))


def _put_out(outputs: Outputs, context: Context, effect: Served | Parked | Emitted) -> None:
    """What leaves beside the answer, in order."""
    match effect:
        case Served(_, answer, reply):
            if reply:
                to = msgspec.msgpack.decode(reply, type=wire.Address)
                outputs.reply(to, with_bodies(context, answer) | {"now": context.now_ms})
        case Parked(id_, message, body):
            headers = tuple((name, value.encode()) for name, value in (message.headers or {}).items())
            outputs.own("parked", id_, body, (("reason", b"DELIVERIES_EXHAUSTED"), *headers))
        case Emitted(id_, record):
            target = context.settings.buffer.target if context.settings.buffer else f"{outputs.stage}.target"
            headers = cast(Headers, tuple(record.headers))  # as they came, maybe some without a value
            outputs.put(target, record.key, record.value, (*headers, (TL_SOURCE, id_.encode())))
