"""What the rules share while one record is applied: store, configuration, clock (registration.md 1), and the
effects so far; the documents of an entity (11, 12)."""

from __future__ import annotations

from typing import Any

from headrace_core.registration.config import MAIN, RegistrationConfig
from headrace_core.registration.effects import Dropped, Effect, Opened
from headrace_core.registration.items import Entity, name_of
from headrace_core.registration.message import MEMBERS, Message, read_json, write_json
from headrace_core.registration.reasons import Refusal, outcome
from headrace_core.registration.store import Store


class Work:
    """One record's work at log time `now` (ms). `touched`: the entities whose status may have changed, in order."""

    __slots__ = ("config", "effects", "emit", "now", "store", "touched")

    def __init__(self, store: Store, config: RegistrationConfig, now: int = 0) -> None:
        self.store = store
        self.config = config
        self.now = now
        self.effects: list[Effect] = []
        self.emit = self.effects.append
        """Put out one effect."""
        self.touched: dict[tuple[str, str], None] = {}

    def touch(self, root: str, tid: str) -> None:
        self.touched[root, tid] = None

    def drop(self, message: Message, root: str | None, refusal: Refusal) -> None:
        """End a message that is not kept: count it and put it out (section 11)."""
        self.store.count(f"{outcome(refusal.reason)}.{refusal.reason}")
        if root is not None:
            self.count_reason(root, refusal.reason)
        self.emit(Dropped(message, root, refusal.reason, refusal.detail))

    def count_reason(self, root: str, reason: str) -> None:
        self.store.tally(root, f"dropped.{reason}")


def document(tid: str, entity: Entity) -> dict[str, Any]:
    """The entity document of section 12."""
    values = zip(MEMBERS, (entity.type, entity.id, entity.parent, entity.health), strict=True)
    return {"@topic-id": tid} | {name: value for name, value in values if value is not None}


def publication(entity: Entity) -> bytes:
    """The retained registration for the bridge: last content with the current @ members (section 11)."""
    twin = {k: v for k, v in read_json(entity.content).items() if not k.startswith("@")}
    values = zip(MEMBERS, (entity.type, entity.id, entity.parent, entity.health), strict=True)
    return write_json({name: value for name, value in values if value is not None} | twin)


def main_device(config: RegistrationConfig, root: str) -> Entity:
    """The main device, registered from the start (section 1)."""
    return Entity("device", config.roots[root], None, None, False, 0, b"{}", retained=False)


def open_root(work: Work, root: str) -> None:
    """Make sure that the main device of `root` is in the store."""
    if not work.store.has_entity(root, MAIN):
        main = main_device(work.config, root)
        work.store.put(b"E" + name_of(root, MAIN), main)
        work.emit(Opened(root, MAIN, document(MAIN, main)))
        work.store.tally(root, "entities.device")
        work.touch(root, MAIN)
