"""The registration engine: one record in, effects out; the whole state is in the State port (registration.md).

Each record first moves the clock, which forgets pending entities (6.4) and old statuses (2) whose time is over, and is
looked at after that. Nothing is kept between two calls but what the state says too, so a restart changes nothing (10).

What becomes of an id, by its state (13; idle: removed, expired, or unknown with a refusal) and by what comes:

| state      | registration, parent known | parent unknown    | data                     | removal     | time limit |
|------------|----------------------------|-------------------|--------------------------|-------------|------------|
| unknown,   | registered, releases what  | pending: it waits | pending: it is kept (6); | no effect   | -          |
| idle       | waited for it (5.3)        | (5.1)             | or registered (7)        |             |            |
| pending    | registered, replays its    | pending: the last | pending: it is kept (6); | idle, all   | idle, all  |
|            | cache (6.5)                | one counts (5.2)  | or registered (7)        | cancelled   | expired    |
|            |                            |                   |                          | (9)         | (6.4)      |
| registered | update or repeat (8)       | refused (8.3)     | passes                   | idle, with  | -          |
|            |                            |                   |                          | all below   |            |
|            |                            |                   |                          | it (9)      |            |

A refused message (4) changes none of these states; only the last refusal of the id is kept with its status (13).
"""

from __future__ import annotations

from headrace_core.registration import entities, http, removal, status, topics
from headrace_core.registration.cache import pending
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.effects import Effect
from headrace_core.registration.items import CLOCK, counter_key
from headrace_core.registration.message import Message, parse_definition
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import Request, Response
from headrace_core.registration.store import Store
from headrace_core.registration.topics import Kind, Parsed
from headrace_core.registration.updates import update
from headrace_core.registration.work import Work, open_root
from headrace_core.state import State

IN, PASSED = counter_key("in"), counter_key("passed")


class Engine:
    """Rules over a State. Times are milliseconds on the log's clock; a lower time than the clock's counts as that."""

    def __init__(self, state: State, config: RegistrationConfig) -> None:
        self.store = Store(state, keep=True)
        self._config = config
        self.now = 0
        """The clock of the last record (ms)."""
        self._opened: set[str] = set()
        """Roots whose main device is known to be in the store; it is never removed."""

    def message(self, topic: str, payload: bytes, *, retained: bool | None, receipt_ms: int, ref: int) -> list[Effect]:
        """Apply one MQTT message; `ref` is its offset in the log. Whatever is wrong with it is an effect.

        `retained` None: the bridge could not see the flag, and the channel decides (section 9).
        """
        work = self._begin(receipt_ms)
        work.store.add(IN, 1)
        if retained is None:
            retained = topics.assumed_retained(topic)
        message = Message(topic, payload, retained, work.now, ref)
        try:
            parsed = topics.parse(topic, self._config.roots)
        except Refusal as refusal:
            root = topic.split("/")[0]
            work.drop(message, root if root in self._config.roots else None, refusal)
            return self._end(work)
        if parsed.root not in self._opened:
            open_root(work, parsed.root)
            self._opened.add(parsed.root)
        if parsed.kind is Kind.REGISTRATION:
            _registration(work, parsed, message)
        else:
            _data(work, parsed, message)
        return self._end(work)

    def unreadable(self, topic: str, payload: bytes, *, receipt_ms: int, ref: int, detail: str) -> list[Effect]:
        """Apply a record whose MQTT topic cannot be read: refused as `invalid_topic`."""
        work = self._begin(receipt_ms)
        work.store.count("in")
        message = Message(topic, payload, False, work.now, ref)
        work.drop(message, None, Refusal("invalid_topic", detail))
        return self._end(work)

    def tick(self, receipt_ms: int) -> list[Effect]:
        """Move the clock."""
        return self._end(self._begin(receipt_ms))

    def request(self, request: Request, receipt_ms: int) -> tuple[list[Effect], Response]:
        """Apply an HTTP write (section 12) and answer it."""
        work = self._begin(receipt_ms)
        response = http.answer(work, request)
        return self._end(work), response

    def next_due(self) -> int | None:
        """Log time at which the next pending entity or idle status is over; None: nothing waits."""
        times = []
        for family, wait in ((b"X", self._config.pending_ttl), (b"A", self._config.status_retention)):
            found = self.store.first_under(family)
            if found is not None:
                times.append(int.from_bytes(found[0][1:9], "big") + wait)
        return min(times, default=None)

    def _begin(self, receipt_ms: int) -> Work:
        clock = self.store.number(CLOCK)
        if receipt_ms > clock:
            self.store.set_number(CLOCK, receipt_ms)
            clock = receipt_ms
        self.now = clock
        work = Work(self.store, self._config, clock)
        pending.expire(work)
        status.expire_idle(work)
        return work

    def _end(self, work: Work) -> list[Effect]:
        for root, tid in work.touched:
            work.emit(status.changed(work, root, tid))
        return work.effects


def _registration(work: Work, parsed: Parsed, message: Message) -> None:
    """A message on an entity's own topic: registration, or removal if it is empty."""
    root, tid = parsed.root, parsed.topic_id
    try:
        if not message.payload:
            applied = removal.remove(work, root, tid) is not None
        else:
            outcome = _define(work, root, tid, message)
            if outcome is None:
                return
            entities.note_spelling(work, root, tid, message.topic)
            applied = outcome
        work.store.count("applied" if applied else "no_effect")
    except Refusal as refusal:
        status.set_error(work, root, tid, refusal)
        work.drop(message, root, refusal)


def _define(work: Work, root: str, tid: str, message: Message) -> bool | None:
    """Register, update or let wait. True: took effect, False: a repeat, None: it waits. Raises Refusal."""
    definition = parse_definition(work.config, tid, message.payload)
    if definition.ignored:
        work.store.count("warnings.unknown_member")
    entity = work.store.entity(root, tid)
    if entity is not None:
        return update(work, root, tid, entity, definition)
    parent = definition.resolved_parent(tid)
    if parent is not None and work.store.entity(root, parent) is None:
        pending.wait(work, root, tid, definition, parent, message)
        return None
    entities.register(work, root, tid, definition)
    return True


def _data(work: Work, parsed: Parsed, message: Message) -> None:
    """Data passes if its entity is registered, else it registers it (section 7), is kept (section 6), or is lost."""
    root, tid, store = parsed.root, parsed.topic_id, work.store
    registered = store.has_entity(root, tid)
    if not registered:
        if parsed.kind is Kind.SIGNAL:
            work.drop(message, root, Refusal("unregistered_signal", "signals are not kept"))
            return
        if not message.payload and store.pending(root, tid) is None:
            work.drop(message, root, Refusal("clear_of_unknown"))
            return
        suitable = parsed.registers and bool(message.payload) and topics.default_type(tid) is not None
        if suitable and work.config.auto_register:
            entities.register_automatically(work, root, tid)
            registered = store.has_entity(root, tid)
    if not registered:
        pending.keep(work, parsed, message)
        return
    store.add(PASSED, 1)
    entities.pass_on(work, root, tid, parsed.channel, message)
