"""One record for each applied change, in `timeline.<t>.events` (timeline.md 18), if the setting `events` is on.

A change of a message is what `Store.save` was told, so none can be forgotten and none made up; what brought it about is
the operation of the record, or its due work before. Tombstones and remembered requests that are purged were changes of
no message. What happens to the timeline as a whole is an event without an id.

`created`, `moved`, `cancelled`, `leased`, `extended`, `released`, `given_back`, `completed`, `parked`, `emitted` (a
time buffer's record left), `purged` (a parked message passed its retention); without an id `configured`, `frozen`,
`unfrozen`, `dropped`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headrace_core.timeline.context import Answer
from headrace_core.timeline.message import Message
from headrace_core.timeline.store import Change

OF_MESSAGES = {
    "create": "created", "buffer_in": "created", "move": "moved", "cancel": "cancelled", "extend": "extended",
    "release": "released", "give_back": "given_back", "complete": "completed", "lease": "leased", "poll": "leased",
}  # fmt: skip
OF_THE_WHOLE = {"configure": "configured", "freeze": "frozen", "unfreeze": "unfrozen", "drop": "dropped"}
PARKED, EMITTED, PURGED, LEASED = "parked", "emitted", "purged", "leased"
NAMES = tuple(dict.fromkeys((*OF_MESSAGES.values(), PARKED, EMITTED, PURGED, *OF_THE_WHOLE.values())))


class Event(NamedTuple):
    """`id` None: the timeline as a whole; `about`: the value of the record."""

    name: str
    id: bytes | None
    about: dict[str, Any]


def events(op: str, answer: Answer, due: Sequence[Change], own: Sequence[Change]) -> Iterator[Event]:
    """The events of one record with the operation `op`: of its due work, then its own."""
    now_ms = answer["now"]
    for change in due:
        yield from _of_message(EMITTED if _deleted(change) else LEASED, change, now_ms)
    for change in own:
        yield from _of_message(OF_MESSAGES.get(op, PURGED), change, now_ms)
    if op in OF_THE_WHOLE and answer["ok"]:
        settings = {"settings": answer["settings"]} if op == "configure" else {}
        yield Event(OF_THE_WHOLE[op], None, {"now": now_ms, **settings})


def _deleted(change: Change) -> bool:
    return change.after is not None and change.after.deleted


def _of_message(name: str, change: Change, now_ms: int) -> Iterator[Event]:
    id_, before, after = change
    if after is not None:
        yield Event(PARKED if after.parked else name, id_, _about(id_, after, now_ms))
    elif before is not None and not before.deleted:
        yield Event(PURGED, id_, _about(id_, before, now_ms))


def _about(id_: bytes, message: Message, now_ms: int) -> dict[str, Any]:
    """The message as it is now, without its body; of one that is gone, as it was."""
    state: dict[str, Any] = {"deleted_by": message.deleted_by}
    if not message.deleted:
        state = {"status": message.status(now_ms), "lock": message.lock}
    return {
        "id": id_.decode(), "version": message.version, "timestamp": message.timestamp, "group": message.group,
        "deliveries": message.deliveries, **state, "now": now_ms,
    }  # fmt: skip
