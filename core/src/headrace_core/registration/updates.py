"""Repeats and updates of a registered entity (registration.md 8): fixed members, repeats, a new parent, the rest.

The last accepted content is what a message is compared with. So a redelivered registration changes nothing, whatever
PATCH or twin data came in between, and only what its sender changed is put out. The echo of our own publication has
no effect either (section 7), be it the present one or, overtaken by a PATCH, that of the registration itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from headrace_core.registration import listing
from headrace_core.registration.effects import Updated
from headrace_core.registration.entities import set_twin
from headrace_core.registration.items import Entity, name_of
from headrace_core.registration.message import Definition, read_json, same, write_json
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.status import clear_error
from headrace_core.registration.store import Store
from headrace_core.registration.work import Work, document, publication


def update(work: Work, root: str, tid: str, entity: Entity, definition: Definition) -> bool:
    """Apply a registration message to a registered entity. False: a repeat, no effect. Raises Refusal."""
    if definition.type != entity.type:
        raise Refusal("type_change", f"the entity is a {entity.type}")
    if definition.id not in (None, entity.id):
        raise Refusal("id_change", f"the entity has the external id {entity.id}")
    content, last = definition.content(), read_json(entity.content)
    if same(content, last) or same(content, read_json(publication(entity))):
        clear_error(work, root, tid)
        return False
    if definition.parent is not None:
        check_parent(work.store, root, tid, entity, definition.parent)
    clear_error(work, root, tid)
    entity = replace(entity, content=write_json(content))
    change(work, root, tid, entity, definition.parent, definition.health)
    _put_out_twin(work, root, tid, definition.twin, last)
    return True


def _put_out_twin(work: Work, root: str, tid: str, twin: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    """Put out the keys that differ from the last content and from the current value (8.4)."""
    for name, value in twin.items():
        current = work.store.raw(b"T" + name_of(root, tid) + name.encode())
        known = (name in last and same(last[name], value)) or (current is not None and same(read_json(current), value))
        if not known:
            set_twin(work, root, tid, name, value)


def check_parent(store: Store, root: str, tid: str, entity: Entity, parent: str) -> None:
    """Raises Refusal unless `parent` may be the parent of a registered entity (8.3); the present one may."""
    if parent == entity.parent:
        return
    above = store.entity(root, parent)
    if above is None:
        raise Refusal("no_parent", f"{parent} is not registered")
    if entity.type == "device" or parent == tid or above.type == "service":
        raise Refusal("invalid_parent", f"{parent} cannot be the parent")
    while above is not None and above.parent is not None:
        if above.parent == tid:
            raise Refusal("invalid_parent", f"{parent} is a descendant")
        above = store.entity(root, above.parent)


def change(work: Work, root: str, tid: str, entity: Entity, parent: str | None, health: str | None) -> Entity:
    """Store the entity with the given references (None: as it is) and put out what changed of them."""
    new = replace(entity, parent=parent or entity.parent, health=health or entity.health)
    before, after = (entity.parent, entity.health), (new.parent, new.health)
    changed = tuple(n for n, a, b in zip(("@parent", "@health"), before, after, strict=True) if a != b)
    if new.parent != entity.parent:
        listing.remember(work.store, root, tid)
    work.store.put(b"E" + name_of(root, tid), new)
    if changed:
        work.touch(root, tid)
        work.emit(Updated(root, tid, changed, document(tid, new)))
    return new
