"""Command records and replies as bytes (timeline.md 13.1, 18).

| record | read as |
|---|---|
| headers `tl-op`, `tl-args` (JSON), `tl-request-id`; value = body for create | the operation |
| `tl-op` = `buffer_in`; value = the source record (`buffer.SourceRecord`) | the operation |
| header `kind` = `tick` or `flush` | `tick` |
| no `tl-op`; key = id, value = body, `deliver-at` or `delay-ms`, `tl-producer-group` | `create`; value null: `cancel` |

A reply goes where `tl-reply-to`, `tl-reply-partition` and `tl-correlation-id` say.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

import msgspec

from headrace_core.partitioner import partition_of
from headrace_core.stage import UNREADABLE, Record, header
from headrace_core.timeline.buffer import SourceRecord
from headrace_core.timeline.refusals import Refused, bad_request
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.shape import Args

DELIVER_AT = "deliver-at"
PLAIN_HEADERS = (DELIVER_AT, "delay-ms")


class Command(NamedTuple):
    op: str
    args: Args


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a reply goes."""

    instance: str
    partition: int | None
    correlation: bytes


def read_command(record: Record) -> Command:
    """The operation of a record. Raises Refused BAD_REQUEST."""
    op = header(record.headers, "tl-op")
    if record.headers[:1] == (UNREADABLE,):
        raise bad_request("the name of a header is not UTF-8")
    if op is None:
        return Command("tick", {}) if header(record.headers, "kind") in (b"tick", b"flush") else _plain(record)
    args = _object(header(record.headers, "tl-args") or b"{}")
    if record.key is not None:
        args.setdefault("id", _text("key", record.key))
    if (request_id := header(record.headers, "tl-request-id")) is not None:
        args["request_id"] = _text("tl-request-id", request_id)
    name = _text("tl-op", op)
    if name == "create" and record.value:
        args["body"] = record.value
    elif name == "buffer_in":
        args |= _source(record)
    return Command(name, args)


def _plain(record: Record) -> Command:
    """A producer without a client (section 18)."""
    if record.key is None:
        raise bad_request("neither tl-op nor a key")
    group = _text("tl-producer-group", header(record.headers, "tl-producer-group") or b"")
    args: Args = {"id": _text("key", record.key), "group": group}
    if record.value is None:
        return Command("cancel", args)
    for name, argument in zip(PLAIN_HEADERS, ("timestamp", "delay_ms"), strict=True):
        if (raw := header(record.headers, name)) is not None:
            args[argument] = int(raw) if raw.isdigit() and len(raw) < 40 else _text(name, raw)
    carried = {name: _text(name, raw) for name, raw in record.headers if not _own(name)}
    return Command("create", args | {"body": record.value, "headers": carried or None})


def _source(record: Record) -> Args:
    """A time-buffer record (section 11) as `source.py` wrote it."""
    try:
        source = msgspec.msgpack.decode(record.value or b"", type=SourceRecord)
    except msgspec.DecodeError as error:
        raise bad_request(f"value: no source record: {error}") from None
    due = next((raw for name, raw in source.headers if name == DELIVER_AT), None)
    return {
        "key": source.key,
        "value": source.value,
        "deliver_at": int(due) if due is not None and due.isdigit() and len(due) < 40 else None,
        "headers": source.headers,
    }


def _own(name: str) -> bool:
    return name.startswith("tl-") or name in PLAIN_HEADERS


def _object(raw: bytes) -> Args:
    try:
        value: Any = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise bad_request(f"tl-args: {error}") from None
    if not isinstance(value, dict):
        raise bad_request("tl-args: an object")
    return value


def _text(name: str, raw: bytes | None) -> str:
    """Kafka knows headers without a value, too."""
    if raw is None:
        raise bad_request(f"{name}: has no value")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise bad_request(f"{name}: not UTF-8") from None


def address(record: Record) -> Address | None:
    """Where the reply goes; None: nobody asked for one."""
    instance = header(record.headers, "tl-reply-to")
    if instance is None:
        return None
    partition = header(record.headers, "tl-reply-partition") or b""
    correlation = header(record.headers, "tl-correlation-id") or b""
    return Address(
        instance.decode(errors="replace"),
        int(partition) if partition.isdigit() and len(partition) < 10 else None,
        correlation,
    )


def home(id_: str, settings: Settings) -> int:
    """The partition of an id: by its hash (section 9.1), in a time buffer by its source partition (section 11)."""
    bucket = partition_of(id_.encode(errors="replace"), settings.bucket_count)
    if settings.buffer is not None:
        source = id_.rsplit("-", 2)
        if len(source) == 3 and source[1].isdigit() and len(source[1]) < 20:
            bucket = int(source[1]) % settings.bucket_count
    return bucket % settings.partitions


def routed_right(record: Record, command: Command, settings: Settings) -> Refused | None:
    """A keyed record in another partition's log is refused (section 9.1)."""
    id_ = command.args.get("id")
    if record.key is None or not isinstance(id_, str) or home(id_, settings) == record.partition:
        return None
    return Refused("MISROUTED")


def encode(answer: dict[str, Any]) -> bytes:
    """JSON; bodies as `body` (text) or `body_base64`. The order of members is that of the answer."""
    return msgspec.json.encode(_shown(answer))


def _shown(answer: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in answer.items():
        if isinstance(value, bytes):
            shown |= text_or_base64(value)
        elif name == "leases":
            shown[name] = [_shown(lease) for lease in value]
        else:
            shown[name] = value
    return shown


def text_or_base64(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
