"""The engine of one partition: `apply(state view, record) -> answer, mutations, emissions` (timeline.md 3, 5, 13).

Every record, reads and refused ones included, is handled in this order: NOW becomes the highest append time so far;
due work (time buffer, then waiting polls); the request id; the operation. A refused operation changes nothing.
The answer is a function of the records so far and nothing else; what leaves beside it comes as effects, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from headrace_core.state import State
from headrace_core.timeline import buffer, holder, keys, owner, polls, queries, requests, shape, system
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.refusals import Refused, bad_request
from headrace_core.timeline.settings import Settings, decode_settings
from headrace_core.timeline.shape import Args
from headrace_core.timeline.store import Change, Store
from headrace_core.timeline.verify import verify

Operation = Callable[[Context, Args], Answer]

CHANGES: dict[str, Operation] = {
    "create": owner.create,
    "move": owner.move,
    "cancel": owner.cancel,
    "lease": holder.lease,
    "poll": polls.poll,
    "extend": holder.extend,
    "release": holder.release,
    "complete": holder.complete,
    "give_back": holder.give_back,
}
"""Operations with a request id (section 8)."""

READS: dict[str, Operation] = {
    "get": queries.get,
    "read_body": queries.read_body,
    "due": queries.due,
    "list": queries.list_,
    "count": queries.count,
    "histogram": queries.histogram,
    "leases_of": queries.leases_of,
    "owned_by": queries.owned_by,
    "parked": queries.parked,
    "describe": queries.describe,
}

SYSTEM: dict[str, Operation] = {
    "tick": system.tick,
    "unwait": polls.unwait,
    "clock": system.clock,
    "purge": system.purge,
    "configure": system.configure,
    "freeze": system.freeze,
    "unfreeze": system.unfreeze,
    "drop": system.drop,
    "verify": verify,
    "subscribe": system.subscribe,
    "unsubscribe": system.unsubscribe,
    "buffer_in": buffer.buffer_in,
}

OPERATIONS = CHANGES | READS | SYSTEM


class Outcome(NamedTuple):
    """`answer` has now, emitted, served beside its own members; `effects`: Served, Parked, Emitted in order.

    `before_ms`: NOW before this record. `due`, `own`: what its due work and its operation changed.
    """

    answer: Answer
    effects: list[Any]
    before_ms: int
    due: list[Change]
    own: list[Change]


class Engine:
    """One partition of one timeline. `settings` hold until a `configure` record; `partition` None: all buckets.

    Between two calls it keeps hints only (store.py); `forget` drops them, and no answer changes.
    """

    def __init__(self, settings: Settings, partition: int | None = None) -> None:
        self._settings = settings
        self._partition = partition
        self.heads: dict[int, int] = {}

    def forget(self) -> None:
        self.heads.clear()

    def settings(self, state: State) -> Settings:
        """The settings in force."""
        raw = state.get(keys.SETTINGS)
        return self._settings if raw is None else decode_settings(raw)

    def apply(
        self, state: State, at_ms: int, op: str, args: Args, *, reply: bytes = b"", refused: Refused | None = None
    ) -> Outcome:
        """Apply one record with append time `at_ms`.

        `reply`: where a poll that stays is answered, kept with it. `refused`: the record was refused before it got
        here (unreadable, in another partition's log); the clock and the due work go on all the same.
        """
        store = Store(state, self.heads)
        before_ms = store.clock.now_ms
        if at_ms > store.clock.now_ms:
            store.clock = replace(store.clock, now_ms=at_ms)
        now_ms, effects = store.clock.now_ms, list[Any]()
        context = Context(store, self.settings(state), now_ms, self._partition, effects, reply)
        emitted = buffer.emit_due(context)
        polls.serve(context)
        served = [served_document(effect) for effect in effects if isinstance(effect, polls.Served)]
        if effects:
            store.flush()
        due, store.changes = store.changes, []
        answer = _answer(context, op, args) if refused is None else refused.answer()
        store.flush()
        shown = answer | {"now": now_ms, "emitted": emitted, "served": served}
        return Outcome(shown, effects, before_ms, due, store.changes)

    def again(self, state: State, op: str, args: Args) -> Answer | None:
        """The answer of a command that was applied before, from what is remembered of it (13.4); None: nothing is.

        Bodies of messages that are gone by now are left out.
        """
        store = Store(state, {})
        context = Context(store, self.settings(state), store.clock.now_ms, self._partition, [])
        answer = requests.first_answer(context, op, args) if op in CHANGES else None
        if answer is None:
            return None
        shown = _show(context, op, answer | {"replayed": True})
        return {name: value for name, value in shown.items() if name != "replayed"} | {"now": context.now_ms}


def served_document(served: polls.Served) -> Answer:
    return {"consumer": served.consumer, "ids": served.answer["ids"], "has_more": served.answer["has_more"]}


def _answer(context: Context, op: str, args: Args) -> Answer:
    try:
        if op in CHANGES:
            return _change(context, op, args)
        if op not in OPERATIONS:
            raise bad_request(f"op: {op} is not known")
        return OPERATIONS[op](context, args)
    except Refused as refused:
        return refused.answer()


def _change(context: Context, op: str, args: Args) -> Answer:
    """The request-id check stands before all others; refusals are remembered too (section 8)."""
    request_id = shape.optional_text(args, "request_id")
    if request_id is None:
        return _show(context, op, CHANGES[op](context, args))
    id_, print_ = requests.scope(op, args), requests.fingerprint(op, args)
    answer = requests.recall(context, id_, request_id, print_)
    if answer is None:
        try:
            answer = CHANGES[op](context, args)
        except Refused as refused:
            answer = refused.answer()
        requests.remember(context, id_, request_id, print_, answer)
    return _show(context, op, answer)


def _show(context: Context, op: str, answer: Answer) -> Answer:
    """Grants are shown with their bodies; what is remembered of them has none."""
    if op == "lease" and answer["ok"]:
        shown: Answer = polls.with_bodies(context, answer | {"leases": [answer]})["leases"][0]
        return shown
    return polls.with_bodies(context, answer) if op == "poll" and answer.get("leases") else answer
