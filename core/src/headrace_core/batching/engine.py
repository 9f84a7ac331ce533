"""The event-time batcher of one partition (batching.md 6 to 8).

A batch is *open* from its opening message to its deadline, or a flush, and then *closed*: put out, never touched again.
An identity is *unknown*, *in an open batch*, *remembered* for the horizon after its batch closed, then unknown again.

Can never happen: two open windows of a source that overlap; a type twice in a batch; a member outside `[from, from +
window]`; a batch put out before an older deadline; a clock that falls.

Cost: a message is O(log k) in the open batches of its source and O(1) in the history. Nothing is scanned as a whole but
what is due, and the history is trimmed from its old end.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from headrace_core.batching import keys
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.keys import Clock, Kept, Open
from headrace_core.batching.messages import Batch, Cause, Close, Member, Message, Reason, Rejected
from headrace_core.state import State

Output = Batch | Rejected

_encode = msgspec.msgpack.Encoder().encode
_clock = msgspec.msgpack.Decoder(Clock).decode
_open = msgspec.msgpack.Decoder(Open).decode
_kept = msgspec.msgpack.Decoder(Kept).decode


class Batcher:
    """Applies records in log order to `state`; holds nothing itself.

    `opened` and `forgotten` tell what was done that is no output, for the counters: why each batch was opened, and how
    many identities went out of the history, since this object was made.
    """

    def __init__(self, state: State, config: BatchingConfig) -> None:
        self._state = state
        self._config = config
        self.opened: list[Cause] = []
        self.forgotten = 0

    def message(self, message: Message, receipt_ms: int) -> list[Output]:
        """A readable message received at `receipt_ms`. Returns what fell due, then a rejection if there is one."""
        clock = self._advance(receipt_ms)
        outputs: list[Output] = list(self._due(clock.now_ms))
        reason = self._refusal(message, clock.now_ms)
        if reason is not None:
            return [*outputs, Rejected(reason)]
        self._take(message, clock)
        return outputs

    def unreadable(self, receipt_ms: int) -> list[Output]:
        """A record that holds no readable message: it moves the clock (6.3)."""
        return [*self._due(self._advance(receipt_ms).now_ms), Rejected(Reason.INVALID)]

    def tick(self, receipt_ms: int) -> list[Output]:
        """A tick: due batches only (6.2)."""
        return list(self._due(self._advance(receipt_ms).now_ms))

    def flush(self, receipt_ms: int) -> list[Output]:
        """Due batches, then all others by deadline and opening, closed at the clock (8)."""
        now_ms = self._advance(receipt_ms).now_ms
        due = self._due(now_ms)
        rest = list(self._state.scan(b"d", b"e"))
        return [*due, *(self._close(key, batch, now_ms, Close.FLUSH) for key, batch in rest)]

    def next_due(self) -> int | None:
        """The earliest deadline of an open batch, ms; None if none is open."""
        for key, _ in self._state.scan(b"d", b"e"):
            return keys.number_of(key[1:9])
        return None

    def _advance(self, receipt_ms: int) -> Clock:
        """6.1; the clock never runs backwards (4.4). Also forgets what is beyond the horizon (7)."""
        raw = self._state.get(keys.CLOCK)
        clock = _clock(raw) if raw is not None else Clock(receipt_ms)
        if raw is None or receipt_ms > clock.now_ms:
            clock = msgspec.structs.replace(clock, now_ms=max(receipt_ms, clock.now_ms))
            self._state.put(keys.CLOCK, _encode(clock))
        return clock

    def _due(self, now_ms: int) -> list[Batch]:
        """6.2: every batch whose deadline is at or before the clock, by deadline, then by opening."""
        due = list(self._state.scan(b"d", keys.due_key(now_ms + 1, -keys.SHIFT)))
        batches = [self._close(key, batch, keys.number_of(key[1:9]), Close.TIMEOUT) for key, batch in due]
        self._forget(now_ms)
        return batches

    def _refusal(self, message: Message, now_ms: int) -> Reason | None:
        """6.3 for a time that no key can hold, 6.4, then 6.5; a message exactly at a limit is accepted."""
        if not keys.LOWEST_MS <= message.event_ms <= keys.HIGHEST_MS:
            return Reason.INVALID
        if self._known(keys.identity_key(message.source, message.event_ms, message.type), now_ms):
            return Reason.DUPLICATE
        skew, lateness = self._config.max_future_skew, self._config.max_lateness
        if skew is not None and message.event_ms > now_ms + skew:
            return Reason.FUTURE
        if lateness is not None and message.event_ms < now_ms - lateness:
            return Reason.LATE
        return None

    def _known(self, identity: bytes, now_ms: int) -> bool:
        """7: while its batch is open, then while clock <= closed_at + horizon."""
        last = self._state.get(identity)
        return last is not None and (not last or now_ms <= keys.number_of(last))

    def _take(self, message: Message, clock: Clock) -> None:
        """6.6 to 6.8."""
        covering = self._covering(message)
        cause = Cause.NEW if covering is None else self._obstacle(message, covering)
        if covering is not None and cause is None:
            joined = msgspec.structs.replace(
                covering, members=covering.members + 1, size=covering.size + len(message.value)
            )
            self._state.put(keys.open_key(message.source, joined.from_ms, joined.number), _encode(joined))
            self._add(message, joined.number, clock)
            return
        if covering is not None:  # 6.7: the old batch ends where the newcomer begins; what is in it stays
            cut = msgspec.structs.replace(covering, until_ms=message.event_ms)
            self._state.put(keys.open_key(message.source, cut.from_ms, cut.number), _encode(cut))
        self._begin(message, clock)
        self.opened += [cause] if cause is not None else []

    def _covering(self, message: Message) -> Open | None:
        """The open batch of the source whose window covers the event time; windows are disjoint, so the nearest."""
        prefix = b"b" + keys.named(message.source)
        for _, raw in self._state.scan(prefix + keys.falling(message.event_ms), keys.after(prefix)):
            batch = _open(raw)
            return batch if message.event_ms < batch.until_ms else None
        return None

    def _obstacle(self, message: Message, batch: Open) -> Cause | None:
        """What keeps the message out of the batch that covers it (6.7); None: it joins (6.6)."""
        if self._state.get(keys.type_key(batch.number, message.type)) is not None:
            return Cause.CONFLICT
        full = batch.members >= batch.max_members or batch.size + len(message.value) > batch.max_bytes
        return Cause.FULL if full else None

    def _begin(self, message: Message, clock: Clock) -> None:
        """6.8: `[t, t + window]`, cut short by the lowest open `from` above `t`."""
        until_ms, from_ms = message.event_ms + self._config.window + 1, message.event_ms
        prefix = b"a" + keys.named(message.source)
        for key, _ in self._state.scan(prefix + keys.rising(from_ms + 1), keys.after(prefix)):
            until_ms = min(until_ms, keys.number_of(key[len(prefix) : len(prefix) + 8]))
            break
        deadline_ms = clock.now_ms + self._config.timeout
        batch = Open(
            number=clock.batches,
            from_ms=from_ms,
            until_ms=until_ms,
            opened_ms=clock.now_ms,
            deadline_ms=deadline_ms,
            type=message.type,
            members=1,
            size=len(message.value),
            max_members=self._config.max_members,
            max_bytes=self._config.max_batch_bytes,
            horizon=self._config.horizon,
        )
        key = keys.open_key(message.source, from_ms, batch.number)
        self._state.put(key, _encode(batch))
        derive(self._state, key, _encode(batch))
        self._add(message, batch.number, msgspec.structs.replace(clock, batches=clock.batches + 1))

    def _add(self, message: Message, number: int, clock: Clock) -> None:
        key = keys.member_key(number, message.event_ms, clock.arrivals)
        value = _encode(Kept(message.type, clock.now_ms, message.value))
        self._state.put(key, value)
        derive(self._state, key, value)
        self._state.put(keys.identity_key(message.source, message.event_ms, message.type), b"")
        self._state.put(keys.CLOCK, _encode(msgspec.structs.replace(clock, arrivals=clock.arrivals + 1)))

    def _close(self, due: bytes, key: bytes, closed_ms: int, close: Close) -> Batch:
        """Put the batch out and remember its identities (7, 9)."""
        raw = self._state.get(key)
        assert raw is not None, f"a deadline without its batch: {due!r}"
        batch, source = _open(raw), keys.source_of(key)
        members = tuple(self._taken_out(source, batch.number, closed_ms + batch.horizon))
        for gone in (key, due, keys.above_key(source, batch.from_ms, batch.number)):
            self._state.delete(gone)
        id_ = batch_id(source, batch.type, batch.from_ms, batch.opened_ms)
        return Batch(id_, source, batch.from_ms, batch.opened_ms, closed_ms, close, members)

    def _taken_out(self, source: str, number: int, last_ms: int) -> list[Member]:
        """The members, in order; their identities stay known until `last_ms`, by the settings of the opening (3)."""
        members = []
        for key, raw in list(self._state.scan(b"m" + keys.rising(number), b"m" + keys.rising(number + 1))):
            kept, event_ms = _kept(raw), keys.number_of(key[9:17])
            members.append(Member(kept.type, event_ms, kept.received_ms, kept.value))
            self._state.delete(key)
            self._state.delete(keys.type_key(number, kept.type))
            identity, last = keys.identity_key(source, event_ms, kept.type), keys.rising(last_ms)
            self._state.put(identity, last)
            derive(self._state, identity, last)
        return members

    def _forget(self, now_ms: int) -> None:
        """7: the history is trimmed from its old end, `closed_at + horizon < clock`."""
        for key, _ in list(self._state.scan(b"x", b"x" + keys.rising(now_ms))):
            self.forgotten += 1
            self._state.delete(key)
            self._state.delete(key[9:])


def derive(state: State, key: bytes, value: bytes) -> None:
    """Write the derived keys of one primary item (see `keys`)."""
    match key[:1]:
        case b"b":
            batch = _open(value)
            state.put(keys.above_key(keys.source_of(key), batch.from_ms, batch.number), b"")
            state.put(keys.due_key(batch.deadline_ms, batch.number), key)
        case b"m":
            state.put(keys.type_key(keys.number_of(key[1:9]), _kept(value).type), b"")
        case b"h" if value:
            state.put(keys.forget_key(keys.number_of(value), key), b"")


def batch_id(source: str, opening_type: str, from_ms: int, opened_ms: int) -> str:
    """The id of batching.md 9: SHA-256 of the compact JSON array, first 32 hexadecimal digits."""
    named = json.dumps([source, opening_type, from_ms, opened_ms], separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]
