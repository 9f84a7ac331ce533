"""The event-time batcher of one partition (batching.md 6 to 8).

A batch is *open* from its opening message to its deadline, or a flush, and then *closed*: put out, never touched again.
An identity is *unknown*, *in an open batch*, *remembered* for the horizon after its batch closed, then unknown again.

Can never happen: two open windows of a source that overlap; a type twice in a batch; a member outside `[from, from +
window]`; a batch put out before an older deadline; a clock that falls.

Cost: a message is O(log k) in the open batches of its source and O(1) in the history. Nothing is scanned as a whole but
what is due, and the history is trimmed from its old end.

What is read once and written once a chunk: the clock, the open batches that took a message (`_open`), the windows of
their sources, and what is new in the indexes. `settle` writes it back; so the state after a chunk is the same however
it was cut. Its writes hold every primary item that another cut would have written, as deleted if it has come and gone
since: a late writer may have put it into the changelog, and only a newer record of the key outdoes that (streams.md 5).
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
from headrace_core.batching.windows import Windows
from headrace_core.state import State, hold

Output = Batch | Rejected

_encode = msgspec.msgpack.Encoder().encode
_clock = msgspec.msgpack.Decoder(Clock).decode
_open = msgspec.msgpack.Decoder(Open).decode
_page = msgspec.msgpack.Decoder(Page).decode
_identities = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
"""The keys of identities: each as it is encoded alone."""
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
        self._horizon = config.horizon
        self._skew, self._lateness = config.max_future_skew, config.max_lateness
        raw = state.get(keys.CLOCK)
        self._written = Clock(BEFORE_ALL) if raw is None else _clock(raw)
        self._now_ms, self._batches = self._written.now_ms, self._written.batches
        self._deadlines = Ahead(state, keys.DUE)
        self._history = Ahead(state, keys.FORGET)
        self._windows = Windows(state)
        self._open: dict[int, Open] = {}
        """By number: batches that are newer than in the state."""
        self.opened: dict[Cause, int] = dict.fromkeys(Cause, 0)
        self.forgotten = self.raised = self.ahead = 0
        self._held = hold(state, self.settle)

    def message(self, message: Message, receipt_ms: int) -> list[Output]:
        """A readable message received at `receipt_ms`. Returns what fell due, then a rejection if there is one."""
        outputs = self._advance(receipt_ms)
        event_ms = message.event_ms
        if keys.LOWEST_MS <= event_ms <= keys.HIGHEST_MS:
            identity = keys.identity_key(message.source, event_ms, message.type)
            reason = self._refusal(event_ms, identity)
            if reason is None:
                self.ahead += event_ms > self._now_ms
                self._take(message, identity)
        else:  # no key can hold it, 6.3
            reason = Reason.INVALID
        if reason is not None:
            outputs.append(Rejected(reason))
        return outputs if self._held else self._end(outputs)

    def unreadable(self, receipt_ms: int) -> list[Output]:
        """A record that holds no readable message: it moves the clock (6.3)."""
        return self._end([*self._advance(receipt_ms), Rejected(Reason.INVALID)])

    def tick(self, receipt_ms: int) -> list[Output]:
        """A tick: due batches only (6.2)."""
        return self._end(self._advance(receipt_ms))

    def flush(self, receipt_ms: int) -> list[Output]:
        """Due batches, then all others by deadline and opening, closed at the clock (8)."""
        outputs = self._advance(receipt_ms)
        outputs += [self._close(number, self._now_ms, Close.FLUSH) for _, number, _ in self._deadlines.take(NEVER)]
        return self._end(outputs)

    def next_due(self) -> int | None:
        """The earliest deadline of an open batch, ms; None if none is open."""
        return None if self._deadlines.next_ms == NEVER else self._deadlines.next_ms

    def oldest_age(self) -> int:
        """How long the batch with the earliest deadline has been open, ms on the clock; 0 if none is open."""
        earliest = self._deadlines.lowest
        if earliest is None:
            return 0
        batch = self._open.get(earliest[1]) or self._stored(earliest[1])
        return self._now_ms - batch.opened_ms

    def settle(self) -> None:
        """Write back what was held back; again without effect until more is applied."""
        clock = Clock(self._now_ms, self._batches)
        if clock != self._written:
            self._state.put(keys.CLOCK, _encode(clock))
            self._written = clock
        for number, batch in self._open.items():
            self._state.put(keys.open_key(number), _encode(batch))
        self._open.clear()
        for held in (self._windows, self._deadlines, self._history):
            held.settle()

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
        return [self._close(number, deadline_ms, Close.TIMEOUT) for deadline_ms, number, _ in due]

    def _refusal(self, event_ms: int, identity: bytes) -> Reason | None:
        """6.4, then 6.5; a message exactly at a limit is accepted. What is forgotten (7) is not in the state."""
        if self._state.get(identity) is not None:
            return Reason.DUPLICATE
        if self._skew is not None and event_ms > self._now_ms + self._skew:
            return Reason.FUTURE
        if self._lateness is not None and event_ms < self._now_ms - self._lateness:
            return Reason.LATE
        return None

    def _take(self, message: Message, identity: bytes) -> None:
        """6.6 to 6.8."""
        number = self._windows.covering(message.source, message.event_ms)
        if number is None:
            batch, cause = self._begin(message, Cause.NEW), None
        else:
            batch = self._open.get(number) or self._read(number)
            cause = self._obstacle(message, batch)
        if cause is not None:  # 6.7: the old one ends where the newcomer begins; what is in it stays
            self._windows.cut(batch.source, batch.window, message.event_ms)
            batch.until_ms = message.event_ms
            batch = self._begin(message, cause)
        if len(batch.last) == PAGE:
            self._turn_page(batch)
        batch.last.append(Member(message.type, message.event_ms, self._now_ms, message.value))
        batch.size += len(message.value)
        self._state.put(identity, b"")

    def _obstacle(self, message: Message, batch: Open) -> Cause | None:
        """What keeps the message out of the batch that covers it (6.7); None: it joins (6.6)."""
        for member in batch.last:
            if member.type == message.type:
                return Cause.CONFLICT
        if batch.pages and self._state.get(keys.type_key(batch.number, message.type)) is not None:
            return Cause.CONFLICT
        members = batch.pages * PAGE + len(batch.last)
        full = members >= batch.max_members or batch.size + len(message.value) > batch.max_bytes
        return Cause.FULL if full else None

    def _begin(self, message: Message, cause: Cause) -> Open:
        """6.8: `[t, t + window]`, cut short by the lowest open `from` above `t`."""
        config, from_ms, number = self._config, message.event_ms, self._batches
        until_ms, above_ms = from_ms + config.window + 1, self._windows.above(message.source, from_ms)
        if above_ms is not None and above_ms < until_ms:
            until_ms = above_ms
        batch = self._open[number] = Open(
            source=message.source,
            number=number,
            from_ms=from_ms,
            until_ms=until_ms,
            opened_ms=self._now_ms,
            deadline_ms=self._now_ms + config.timeout,
            type=message.type,
            max_members=config.max_members,
            max_bytes=config.max_batch_bytes,
            horizon=self._horizon,
        )
        self._batches += 1
        self.opened[cause] += 1
        self._windows.open(message.source, batch.window)
        self._deadlines.put(batch.deadline_ms, number, b"")
        return batch

    def _read(self, number: int) -> Open:
        """An open batch that is not in memory; it is about to change."""
        batch = self._open[number] = self._stored(number)
        return batch

    def _stored(self, number: int) -> Open:
        key = keys.open_key(number)
        raw = self._state.get(key)
        assert raw is not None, f"an open batch that is not there: {key!r}"
        return _open(raw)

    def _turn_page(self, batch: Open) -> None:
        """Put the last members where they are not rewritten any more (12)."""
        self._state.put(keys.page_key(batch.number, batch.pages), _encode(Page(batch.source, batch.last)))
        for member in batch.last:
            self._state.put(keys.type_key(batch.number, member.type), b"")
        batch.pages += 1
        batch.last = []

    def _close(self, number: int, closed_ms: int, close: Close) -> Batch:
        """Put the batch out and remember its identities (7, 9), by the settings of its opening (3)."""
        batch = self._open.get(number) or self._read(number)
        del self._open[number]
        source, members = batch.source, self._taken_out(batch)
        identities = _encode([(source, member.event_ms, member.type) for member in members])
        self._history.put(closed_ms + batch.horizon, number, identities)
        self._windows.close(source, batch.window)
        self._state.delete(keys.open_key(number))  # though this chunk may have opened it, see above
        id_ = batch_id(source, batch.type, batch.from_ms, batch.opened_ms)
        return Batch(id_, source, batch.from_ms, batch.opened_ms, closed_ms, close, tuple(members))

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
        delete = self._state.delete
        for _, _, value in self._history.take(self._now_ms):
            identities = _identities(value)
            for identity in identities:
                delete(bytes(identity))
            self.forgotten += len(identities)


def derive(state: State, key: bytes, value: bytes) -> None:
    """Write the derived keys of one primary item (see `keys`)."""
    match key[:1]:
        case b"b":
            batch = _open(value)
            windows = Windows(state)
            windows.open(batch.source, batch.window)
            windows.settle()
            state.put(keys.timed_key(keys.DUE, batch.deadline_ms, batch.number), b"")
            _know(state, batch.source, batch.last)
        case b"m":
            page = _page(value)
            _know(state, page.source, page.members)
            for member in page.members:
                state.put(keys.type_key(keys.number_of(key[1:9]), member.type), b"")
        case b"x":
            for identity in _identities(value):
                state.put(bytes(identity), b"")


def _know(state: State, source: str, members: list[Member]) -> None:
    for member in members:
        state.put(keys.identity_key(source, member.event_ms, member.type), b"")


def batch_id(source: str, opening_type: str, from_ms: int, opened_ms: int) -> str:
    """The id of batching.md 9: SHA-256 of the compact JSON array, first 32 hexadecimal digits."""
    named = f"[{quoted(source)},{quoted(opening_type)},{from_ms},{opened_ms}]"
    return hashlib.sha256(named.encode()).hexdigest()[:32]
