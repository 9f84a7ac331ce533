"""The event-time batcher of one partition (batching.md 6 to 8).

A batch is *open* from its opening message to its deadline, or a flush, and then *closed*: put out, never touched again.
An identity is *unknown*, *in an open batch*, *remembered* for the horizon after its batch closed, then unknown again.

Can never happen: two open windows of a source that overlap; a type twice in a batch; a member outside `[from, from +
window]`; a batch put out before an older deadline; a clock that falls.

Cost: a message is O(log k) in the open batches of its source and O(1) in the history. Nothing is scanned as a whole but
what is due, and the history is trimmed from its old end.

What is read once and written once a chunk: the clock and the open batches that were joined (`_joined`). `settle`
writes it back; so the state after a chunk is the same however it was cut.
"""

from __future__ import annotations

import hashlib
from json.encoder import encode_basestring as quoted
from operator import attrgetter

import msgspec

from headrace_core.batching import keys
from headrace_core.batching.ahead import BEFORE_ALL, NEVER, Ahead
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.keys import PAGE, Clock, Open, Page
from headrace_core.batching.messages import Batch, Cause, Close, Member, Message, Reason, Rejected
from headrace_core.state import State, first, hold

Output = Batch | Rejected

_encode = msgspec.msgpack.Encoder().encode
_clock = msgspec.msgpack.Decoder(Clock).decode
_open = msgspec.msgpack.Decoder(Open).decode
_page = msgspec.msgpack.Decoder(Page).decode
_identities = msgspec.msgpack.Decoder(list[bytes]).decode
_event_ms = attrgetter("event_ms")


class Batcher:
    """Applies records in log order to `state`.

    Over the writes of a chunk (`Overlay`) one batcher may serve all its records; else it writes all after each record.
    `opened`, `forgotten`, `raised` and `ahead` tell what was done that is no output, for the counters, since this
    object was made: why each batch was opened, how many identities went out of the history, how many receipt times were
    below the clock (4.4), how many accepted messages were ahead of it.
    """

    def __init__(self, state: State, config: BatchingConfig) -> None:
        self._state = state
        self._config = config
        raw = state.get(keys.CLOCK)
        self._written = Clock(BEFORE_ALL) if raw is None else _clock(raw)
        self._now_ms, self._batches = self._written.now_ms, self._written.batches
        self._deadlines = Ahead(state, b"d")
        self._history = Ahead(state, b"x")
        self._latest: dict[str, Open] = {}
        """Per source, the open batch that took a message last."""
        self._joined: dict[int, tuple[str, Open]] = {}
        """By number: source and batch, newer than in the state."""
        self.opened: dict[Cause, int] = dict.fromkeys(Cause, 0)
        self.forgotten = self.raised = self.ahead = 0
        self._held = hold(state, self.settle)

    def message(self, message: Message, receipt_ms: int) -> list[Output]:
        """A readable message received at `receipt_ms`. Returns what fell due, then a rejection if there is one."""
        outputs = self._advance(receipt_ms)
        identity = None
        if keys.LOWEST_MS <= message.event_ms <= keys.HIGHEST_MS:  # else no key can hold it, 6.3
            identity = keys.identity_key(message.source, message.event_ms, message.type)
        reason = Reason.INVALID if identity is None else self._refusal(message, identity)
        if reason is not None:
            outputs.append(Rejected(reason))
        elif identity is not None:
            self.ahead += message.event_ms > self._now_ms
            self._take(message, identity)
        return self._end(outputs)

    def unreadable(self, receipt_ms: int) -> list[Output]:
        """A record that holds no readable message: it moves the clock (6.3)."""
        return self._end([*self._advance(receipt_ms), Rejected(Reason.INVALID)])

    def tick(self, receipt_ms: int) -> list[Output]:
        """A tick: due batches only (6.2)."""
        return self._end(self._advance(receipt_ms))

    def flush(self, receipt_ms: int) -> list[Output]:
        """Due batches, then all others by deadline and opening, closed at the clock (8)."""
        outputs = self._advance(receipt_ms)
        outputs += [self._close(batch, self._now_ms, Close.FLUSH) for _, batch in self._deadlines.take(NEVER)]
        return self._end(outputs)

    def next_due(self) -> int | None:
        """The earliest deadline of an open batch, ms; None if none is open."""
        return None if self._deadlines.next_ms == NEVER else self._deadlines.next_ms

    def oldest_age(self) -> int:
        """How long the batch with the earliest deadline has been open, ms on the clock; 0 if none is open."""
        due = first(self._state, b"d", b"e")
        if due is None:
            return 0
        _, batch = self._joined.get(keys.number_of_open(due[1])) or self._read(due[1])
        return self._now_ms - batch.opened_ms

    def settle(self) -> None:
        """Write back what was held back; again without effect until more is applied."""
        clock = Clock(self._now_ms, self._batches)
        if clock != self._written:
            self._state.put(keys.CLOCK, _encode(clock))
            self._written = clock
        for source, batch in self._joined.values():
            self._state.put(keys.open_key(source, batch.from_ms, batch.number), _encode(batch))
        self._joined.clear()

    def _end(self, outputs: list[Output]) -> list[Output]:
        if not self._held:
            self.settle()
        return outputs

    def _advance(self, receipt_ms: int) -> list[Output]:
        """6.1, the clock never runs backwards (4.4); then 6.2; then what is beyond the horizon is forgotten (7)."""
        if receipt_ms > self._now_ms:
            self._now_ms = receipt_ms
        elif receipt_ms < self._now_ms:
            self.raised += 1
        outputs: list[Output] = []
        if self._deadlines.next_ms <= self._now_ms:
            outputs += self._due()
        if self._history.next_ms < self._now_ms:
            self._forget()
        return outputs

    def _due(self) -> list[Batch]:
        """6.2: every batch whose deadline is at or before the clock, by deadline, then by opening."""
        due = self._deadlines.take(self._now_ms + 1)
        return [self._close(batch, keys.number_of(key[1:9]), Close.TIMEOUT) for key, batch in due]

    def _refusal(self, message: Message, identity: bytes) -> Reason | None:
        """6.4, then 6.5; a message exactly at a limit is accepted. What is forgotten (7) is not in the state."""
        if self._state.get(identity) is not None:
            return Reason.DUPLICATE
        skew, lateness = self._config.max_future_skew, self._config.max_lateness
        if skew is not None and message.event_ms > self._now_ms + skew:
            return Reason.FUTURE
        if lateness is not None and message.event_ms < self._now_ms - lateness:
            return Reason.LATE
        return None

    def _take(self, message: Message, identity: bytes) -> None:
        """6.6 to 6.8."""
        batch, newest = self._covering(message)
        cause = Cause.NEW if batch is None else self._obstacle(message, batch)
        if batch is not None and cause is not None:  # 6.7: it ends where the newcomer begins; what is in it stays
            batch.until_ms = message.event_ms
            self._joined[batch.number] = message.source, batch
        if batch is None or cause is not None:
            batch = self._begin(message, newest=newest)
            self.opened[cause or Cause.NEW] += 1
        self._add(message, identity, batch)

    def _covering(self, message: Message) -> tuple[Open | None, bool]:
        """The open batch of the source whose window covers the event time; windows are disjoint, so the nearest.

        The second value: it is known that no open window of the source begins after the event time.
        """
        latest = self._latest.get(message.source)
        if latest is not None and latest.from_ms <= message.event_ms < latest.until_ms:
            return latest, False
        prefix = b"b" + keys.named(message.source)
        at, end = prefix + keys.falling(message.event_ms), keys.after(prefix)
        found = first(self._state, prefix, end)
        newest = found is None or found[0] >= at
        if not newest:
            found = first(self._state, at, end)
        if found is None:
            return None, newest
        joined = self._joined.get(keys.number_of_open(found[0]))
        batch = _open(found[1]) if joined is None else joined[1]
        return (batch if message.event_ms < batch.until_ms else None), newest

    def _obstacle(self, message: Message, batch: Open) -> Cause | None:
        """What keeps the message out of the batch that covers it (6.7); None: it joins (6.6)."""
        for member in batch.last:
            if member.type == message.type:
                return Cause.CONFLICT
        if batch.pages and self._state.get(keys.type_key(batch.number, message.type)) is not None:
            return Cause.CONFLICT
        full = batch.members >= batch.max_members or batch.size + len(message.value) > batch.max_bytes
        return Cause.FULL if full else None

    def _begin(self, message: Message, *, newest: bool) -> Open:
        """6.8: `[t, t + window]`, cut short by the lowest open `from` above `t`."""
        until_ms, from_ms = message.event_ms + self._config.window + 1, message.event_ms
        if not newest:
            prefix = b"a" + keys.named(message.source)
            above = first(self._state, prefix + keys.rising(from_ms + 1), keys.after(prefix))
            if above is not None:
                until_ms = min(until_ms, keys.number_of(above[0][len(prefix) : len(prefix) + 8]))
        batch = Open(
            number=self._batches,
            from_ms=from_ms,
            until_ms=until_ms,
            opened_ms=self._now_ms,
            deadline_ms=self._now_ms + self._config.timeout,
            type=message.type,
            max_members=self._config.max_members,
            max_bytes=self._config.max_batch_bytes,
            horizon=self._config.horizon,
        )
        self._batches += 1
        key = keys.open_key(message.source, from_ms, batch.number)
        self._state.put(key, b"")  # its place; the value follows when it is settled
        self._state.put(keys.above_key(message.source, from_ms, batch.number), b"")
        self._deadlines.put(keys.due_key(batch.deadline_ms, batch.number), key)
        return batch

    def _add(self, message: Message, identity: bytes, batch: Open) -> None:
        if len(batch.last) == PAGE:
            self._turn_page(message.source, batch)
        batch.last.append(Member(message.type, message.event_ms, self._now_ms, message.value))
        batch.size += len(message.value)
        self._state.put(identity, b"")
        if batch.number not in self._joined:
            self._joined[batch.number] = message.source, batch
        self._latest[message.source] = batch

    def _turn_page(self, source: str, batch: Open) -> None:
        """Put the last members where they are not rewritten any more (12)."""
        self._state.put(keys.page_key(batch.number, batch.pages), _encode(Page(source, batch.last)))
        for member in batch.last:
            self._state.put(keys.type_key(batch.number, member.type), b"")
        batch.pages += 1
        batch.last = []

    def _close(self, key: bytes, closed_ms: int, close: Close) -> Batch:
        """Put the batch out and remember its identities (7, 9), by the settings of its opening (3)."""
        number = keys.number_of_open(key)
        source, batch = self._joined.pop(number) if number in self._joined else self._read(key)
        latest = self._latest.get(source)
        if latest is not None and latest.number == number:
            del self._latest[source]
        members = self._taken_out(batch)
        identities = [keys.identity_key(source, member.event_ms, member.type) for member in members]
        self._history.put(keys.forget_key(closed_ms + batch.horizon, number), _encode(identities))
        self._state.delete(key)
        self._state.delete(keys.above_key(source, batch.from_ms, number))
        id_ = batch_id(source, batch.type, batch.from_ms, batch.opened_ms)
        return Batch(id_, source, batch.from_ms, batch.opened_ms, closed_ms, close, tuple(members))

    def _read(self, key: bytes) -> tuple[str, Open]:
        raw = self._state.get(key)
        assert raw is not None, f"a deadline without its batch: {key!r}"
        return keys.source_of(key), _open(raw)

    def _taken_out(self, batch: Open) -> list[Member]:
        """The members by event time, then by arrival (9)."""
        members: list[Member] = []
        for number in range(batch.pages):
            key = keys.page_key(batch.number, number)
            raw = self._state.get(key)
            assert raw is not None, f"a batch without its page: {key!r}"
            members += _page(raw).members
            self._state.delete(key)
        for member in members:
            self._state.delete(keys.type_key(batch.number, member.type))
        members += batch.last
        members.sort(key=_event_ms)
        return members

    def _forget(self) -> None:
        """7: the history is trimmed from its old end, `closed_at + horizon < clock`."""
        for _, value in self._history.take(self._now_ms):
            for identity in _identities(value):
                self._state.delete(identity)
                self.forgotten += 1


def derive(state: State, key: bytes, value: bytes) -> None:
    """Write the derived keys of one primary item (see `keys`)."""
    match key[:1]:
        case b"b":
            source, batch = keys.source_of(key), _open(value)
            state.put(keys.above_key(source, batch.from_ms, batch.number), b"")
            state.put(keys.due_key(batch.deadline_ms, batch.number), key)
            _know(state, source, batch.last)
        case b"m":
            page = _page(value)
            _know(state, page.source, page.members)
            for member in page.members:
                state.put(keys.type_key(keys.number_of(key[1:9]), member.type), b"")
        case b"x":
            for identity in _identities(value):
                state.put(identity, b"")


def _know(state: State, source: str, members: list[Member]) -> None:
    for member in members:
        state.put(keys.identity_key(source, member.event_ms, member.type), b"")


def batch_id(source: str, opening_type: str, from_ms: int, opened_ms: int) -> str:
    """The id of batching.md 9: SHA-256 of the compact JSON array, first 32 hexadecimal digits."""
    named = f"[{quoted(source)},{quoted(opening_type)},{from_ms},{opened_ms}]"
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]
