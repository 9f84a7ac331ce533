"""Request ids (timeline.md 8.1, 8.2), checked before the shape of a changing command.

    new -> remembered (answer, refusals included) -> forgotten at first NOW + dedup_window_ms

Same id and fingerprint: the first answer again, no effect. Same id, other fingerprint: REQUEST_ID_REUSED. A poll that
still waits is remembered until it is answered, whatever the window, so that it is never queued twice.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace_core.timeline import shape
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.message import Remembered
from headrace_core.timeline.refusals import Refused
from headrace_core.timeline.shape import Args


def fingerprint(op: str, args: Args) -> bytes:
    """16 bytes of operation and arguments; the order of the members does not matter.

    Arguments that msgspec does not write (beyond 64 bits, half a surrogate pair) are written by `json`, escaped.
    """
    named = {name: value for name, value in args.items() if name != "request_id" and value is not None}
    try:
        raw = msgspec.json.encode((op, named), order="sorted")
    except (OverflowError, UnicodeEncodeError):
        raw = json.dumps([op, named], sort_keys=True, default=_bytes).encode()
    return blake2b(raw, digest_size=16).digest()


def _bytes(value: object) -> str:
    """Bodies as bytes; nothing else that an argument can hold is unknown to JSON."""
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"an argument of type {type(value).__name__}")


def scope(op: str, args: Args) -> bytes:
    """The message id that a request id belongs to; for polls it is empty. Raises Refused."""
    return b"" if op == "poll" else shape.identifier(args)


def first_answer(context: Context, op: str, args: Args) -> Answer | None:
    """What was answered to a command with a request id that has been applied already; None: it is not remembered."""
    try:
        request_id = shape.optional_text(args, "request_id")
        entry = None if request_id is None else context.store.remembered(scope(op, args), request_id)
    except Refused:
        return None
    if entry is None or entry.fingerprint != fingerprint(op, args):
        return None
    found: Answer = msgspec.msgpack.decode(entry.answer)
    return found


def recall(context: Context, id_: bytes, request_id: str, print_: bytes) -> Answer | None:
    """The remembered answer, None for a new request. Raises Refused REQUEST_ID_REUSED."""
    entry = context.store.remembered(id_, request_id)
    if entry is None or not alive(entry, context.settings.dedup_window_ms, context.now_ms):
        return None
    if entry.fingerprint != print_:
        raise Refused("REQUEST_ID_REUSED")
    if entry.waiter and context.reply:
        _redirect(context, entry.waiter)
    first: dict[str, Any] = msgspec.msgpack.decode(entry.answer)
    return first | {"replayed": True}


def alive(entry: Remembered, window_ms: int, now_ms: int) -> bool:
    return bool(entry.waiter) or now_ms < entry.at_ms + window_ms


def _redirect(context: Context, sequence: int) -> None:
    """A repeated poll that still waits: its answer goes to where it was asked last."""
    waiter = context.store.waiter(sequence)
    if waiter is not None:
        context.store.replace_waiter(sequence, replace(waiter, reply=context.reply))


def remember(context: Context, id_: bytes, request_id: str, print_: bytes, answer: Answer) -> None:
    waiter = answer.get("waiter", 0)
    entry = Remembered(context.now_ms, print_, msgspec.msgpack.encode(answer), waiter)
    context.store.remember(id_, request_id, entry)
