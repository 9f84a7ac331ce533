"""The registration stage on raw records: what goes where, with which headers, and counters that add up."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.queries import answer
from headrace_core.registration.routes import Request
from headrace_core.registration.stage import RegistrationStage
from headrace_core.registration.store import Store
from headrace_core.stage import CountsRoots, Emission, HasAges, Record, header
from headrace_core.state import MemoryState, Overlay


class Log:
    """A partition of `raw` with the stage behind it."""

    def __init__(self, **config: Any) -> None:
        self.stage = RegistrationStage(RegistrationConfig(**config))
        self.state = MemoryState()
        self.offset = -1

    def record(self, value: bytes | None, *headers: tuple[str, bytes], at: int = 0, key: bytes | None = b"te") -> Any:
        self.offset += 1
        out: list[Emission] = []
        self.stage.apply(self.state, Record(3, self.offset, at, key, value, headers), out.append)
        return out

    def message(self, topic: str, payload: Any, at: int = 0, *, retain: bool = False) -> list[Emission]:
        value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        return self.record(value, ("topic", topic.encode()), ("retain", b"1" if retain else b"0"), at=at)

    def request(self, method: str, path: str, at: int = 0, **more: Any) -> list[Emission]:
        value = {"method": method, "path": path, "correlation": "c1"} | more
        return self.record(json.dumps(value).encode(), ("kind", b"request"), at=at, key=None)


def to(topic: str, out: list[Emission]) -> list[Emission]:
    return [e for e in out if e.topic == topic]


def kinds(out: list[Emission]) -> list[bytes | None]:
    return [header(e.headers, "kind") for e in to("routed", out)]


def balance(gauges: Any) -> int:
    prefixes = ("passed", "replayed", "applied", "no_effect", "replaced", "refused.", "lost.", "discarded.", "pending")
    return sum(count for name, count in gauges.items() if name.startswith(prefixes))


def test_data_of_an_unknown_child_registers_it_first() -> None:
    out = Log().message("te/device/a///m/temp", {"t": 1}, at=50)
    assert kinds(out) == [b"register", b"data"]
    register, data = to("routed", out)
    assert json.loads(register.value or b"")["@id"] == "main-dev:device:a"
    assert data.value == b'{"t": 1}'
    assert data.key == b"te"
    assert data.partition == 3
    assert header(data.headers, "entity") == b"te/device/a//"
    assert header(data.headers, "topic") == b"te/device/a///m/temp"
    assert header(data.headers, "channel") == b"m/temp"
    assert header(data.headers, "receipt_time") == b"50"
    (published,) = to("outbound", out)
    assert published.key == b"te/device/a//"
    assert json.loads(published.value or b"")["name"] == "a"


def test_every_emission_has_an_id_of_its_own_in_order() -> None:
    out = Log().message("te/device/a///m/temp", 1)
    assert [header(e.headers, "id") for e in out] == [b"registration:3:0:%d" % n for n in range(len(out))]


def test_replayed_data_keeps_its_receipt_time() -> None:
    log = Log(auto_register=False)
    assert to("routed", log.message("te/device/a///m/t", 1, at=10)) == []
    out = log.message("te/device/a//", {"@type": "child-device", "name": "n"}, at=99)
    assert kinds(out) == [b"register", b"twin", b"data"]
    assert [header(e.headers, "receipt_time") for e in to("routed", out)] == [b"99", b"99", b"10"]
    assert json.loads(to("routed", out)[1].value or b"") == {"key": "name", "value": "n"}


@pytest.mark.parametrize("kind", [b"tick", b"flush"])
def test_ticks_and_flushes_move_the_clock_and_are_copied_to_the_same_partition(kind: bytes) -> None:
    log = Log(auto_register=False, pending_ttl=100)
    log.message("te/device/a///m/t", 1, at=10)
    out = log.record(None, ("kind", kind), at=110, key=None)
    copy = to("routed", out)[-1]
    assert (copy.key, copy.value, copy.partition) == (None, None, 3)
    assert header(copy.headers, "kind") == kind
    assert header(copy.headers, "receipt_time") == b"110"
    (letter,) = to("dead-letter", out)
    assert json.loads(letter.value or b"") == {
        "reason": "expired",
        "detail": "the entity was pending for pending_ttl",
        "root": "te",
        "topic": "te/device/a///m/t",
        "payload": "1",
        "receipt_time": 10,
        "lost_at": 110,
    }


def test_without_the_retain_flag_metadata_and_alarms_count_as_retained() -> None:
    log = Log()
    for channel in ("m/t", "e/t", "a/t", "m/t/meta", "twin/k", "cmd/op", "cmd/op/1", "status/s", "config"):
        log.record(b"{}", ("topic", f"te/device/a///{channel}".encode()))
    cleared = [e.key for e in to("outbound", log.message("te/device/a//", b"", retain=True))]
    topics = ["a/t", "cmd/op", "cmd/op/1", "config", "m/t/meta", "status/s", "twin/k"]
    assert cleared == [*(f"te/device/a///{t}".encode() for t in topics), b"te/device/a//"]


def test_unknown_members_with_an_at_sign_are_ignored_and_counted() -> None:
    log = Log()
    out = log.message("te/device/a//", {"@type": "child-device", "@tpye": 1, "@topic-id": "device/a//", "@x": None})
    assert kinds(out) == [b"register"]
    assert log.stage.gauges(log.state)["warnings.unknown_member"] == 1


def test_removal_leaves_tombstones_and_clears() -> None:
    log = Log()
    log.message("te/device/a//", {"@type": "child-device"}, retain=True)
    log.message("te/device/a///twin/x", 1, retain=True)
    out = log.message("te/device/a//", b"")
    assert kinds(out) == [b"remove"]
    assert [(e.key, e.value) for e in to("outbound", out)] == [(b"te/device/a///twin/x", b""), (b"te/device/a//", b"")]
    assert [(e.key, e.value) for e in to("entities", out)] == [(b"te/device/a//", None)]
    (status,) = to("registrations", out)
    assert json.loads(status.value or b"")["status"] == "removed"


@pytest.mark.parametrize("waits", [False, True])
def test_a_removal_clears_the_registration_however_its_topic_was_spelled(waits: bool) -> None:
    """`te/device/a` and `te/device/a//` name one entity, but the broker retains each of them (sections 3 and 9)."""
    log = Log()
    members = {"@type": "child-device"} | ({"@parent": "device/p//"} if waits else {})
    log.message("te/device/a", members, retain=True)
    log.message("te/device/p", {"@type": "child-device"}, retain=True)
    log.message("te/device/a///", members | {"x": 1}, retain=True)
    log.message("te/device/a//", members | {"x": 1}, retain=True)
    out = log.request("DELETE", "/te/v1/entities/device/a")
    assert kinds(out) == [b"remove"]
    topics = [b"te/device/a//", b"te/device/a", b"te/device/a///"]
    assert [(e.key, e.value) for e in to("outbound", out)] == [(topic, b"") for topic in topics]
    for topic in topics:
        assert to("routed", log.message(topic.decode(), b"", retain=True)) == []
    log.message("te/device/a//", members, retain=True)
    assert [e.key for e in to("outbound", log.request("DELETE", "/te/v1/entities/device/a"))] == [b"te/device/a//"]


def test_a_request_is_answered_after_what_it_caused() -> None:
    out = Log().request("POST", "/te/v1/entities", body={"@topic-id": "device/a", "@type": "child-device"})
    assert kinds(out) == [b"register"]
    reply = out[-1]
    assert (reply.topic, reply.key) == ("replies", b"c1")
    assert json.loads(reply.value or b"")["status"] == 201
    assert json.loads(reply.value or b"")["body"] == {"@topic-id": "device/a//"}


def test_a_refused_request_has_its_answer_and_no_dead_letter() -> None:
    out = Log().request("DELETE", "/te/v1/entities/device/main")
    assert to("dead-letter", out) == []
    answer = json.loads(out[-1].value or b"")
    assert answer["headers"]["Content-Type"] == "application/problem+json"
    assert answer["body"]["type"] == "urn:headrace:registration:main_protected"


def test_if_match_is_checked_when_the_write_is_processed() -> None:
    log = Log()
    log.message("te/device/a//", {"@type": "child-device"})
    out = log.request("DELETE", "/te/v1/entities/device/a", headers={"If-Match": '"other"'})
    assert json.loads(out[-1].value or b"")["body"]["reason"] == "precondition_failed"
    assert kinds(out) == []


REQUEST_TWICE = b'{"method":"POST","path":"/te/v1/entities","correlation":"c","body":{"@type":"a","@type":"b"}}'


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b'{"method":"GET"}', b'{"method":1,"path":"","correlation":""}', REQUEST_TWICE],
)
def test_an_unreadable_request_is_a_dead_letter(value: bytes) -> None:
    (letter,) = to("dead-letter", Log().record(value, ("kind", b"request"), key=None))
    assert json.loads(letter.value or b"")["reason"] == "invalid_payload"


def test_a_status_names_the_last_refusal() -> None:
    out = Log().message("te/device/a//", {"@type": "x"}, at=7)
    status = json.loads(next(e for e in to("registrations", out) if e.key == b"te/device/a//").value or b"")
    assert (status["status"], status["reason"], status["since"]) == ("refused", "invalid_type", None)
    assert status["document"]["last_error"] == {"reason": "invalid_type", "receipt_time": 7}


def test_a_dead_letter_keeps_the_key_and_64_kib_of_bytes_that_are_no_text() -> None:
    (letter,) = to("dead-letter", Log().message("te/device/a//", b"\xff" * 70_000))
    document = json.loads(letter.value or b"")
    assert letter.key == b"te"
    assert base64.b64decode(document["payload_base64"]) == b"\xff" * 65_536
    assert document["truncated"] is True


@pytest.mark.parametrize("headers", [(), (("topic", b"\xff"),), (("topic", b"te"),), (("topic", b"xx/device/a//"),)])
def test_a_record_without_a_usable_topic_is_a_dead_letter(headers: Any) -> None:
    log = Log()
    (letter,) = to("dead-letter", log.record(b"1", *headers))
    assert json.loads(letter.value or b"")["reason"] == "invalid_topic"
    assert balance(log.stage.gauges(log.state)) == log.stage.gauges(log.state)["in"] == 1


def test_the_main_device_is_among_the_entities_from_the_first_record_on() -> None:
    log = Log()
    out = log.message("te/device/a//", b"")
    (main,) = to("entities", out)
    assert (main.key, json.loads(main.value or b"")["@id"]) == (b"te/device/main//", "main-dev")
    assert to("entities", log.message("te/device/a//", b"")) == []


def test_counters_add_up_over_every_kind_of_outcome() -> None:
    log = Log(telemetry_cache_size=1, metadata_cache_bytes=100, pending_ttl=1000)
    waits = {"@type": "child-device", "@parent": "device/p"}
    for topic, payload in (
        ("te/device/a//", waits),
        ("te/device/a//", waits),
        ("te/custom/x///m/t", 1),
        ("te/custom/x///m/t", 2),
        ("te/custom/x///twin/k", "x" * 100),
        ("te/custom/x///signal/s", 1),
        ("te/custom/y///m/t", b""),
        ("te/device/b///m/t", 1),
        ("te/device/b///zz", 1),
        ("te/device/p//", {"@type": "child-device"}),
        ("te/device/p//", {"@type": "child-device"}),
        ("te/device/zz//", b""),
        ("te/device/w//", {"@parent": "device/q"}),
    ):
        log.message(topic, payload)
        gauges = log.stage.gauges(log.state)
        assert balance(gauges) == gauges["in"]
    gauges = log.stage.gauges(log.state)
    for name in ("applied", "replaced", "lost.evicted", "lost.metadata_full", "lost.unregistered_signal"):
        assert gauges[name] >= 1, name
    assert gauges["discarded.clear_of_unknown"] == 1
    assert gauges["refused.unknown_channel"] == 1
    assert gauges["pending"] == 2


def test_the_next_due_time_is_when_the_oldest_pending_entity_expires() -> None:
    log = Log(auto_register=False, pending_ttl=100, status_retention=1000)
    assert log.stage.next_due(log.state) is None
    log.message("te/device/a///m/t", 1, at=10)
    log.message("te/device/b///m/t", 1, at=20)
    assert log.stage.next_due(log.state) == 110
    log.record(None, ("kind", b"tick"), at=120, key=None)
    assert log.stage.next_due(log.state) == 1110


def test_indexes_come_back_from_the_primary_items_alone() -> None:
    log = Log(auto_register=True)
    log.message("te/device/a//", {"@parent": "device/p"})
    log.message("te/device/a/service/s/m/t", 1)
    log.message("te/custom/x///m/t", 1)
    log.message("te/device/b//", {"@id": "b"})
    log.message("te/device/c//", {"@id": "a/b"})
    primary = {k: v for k, v in log.state.snapshot().items() if k[0] in log.stage.primary}
    restored = MemoryState(primary)
    for key, value in primary.items():
        log.stage.derive(restored, key, value)
    assert restored.snapshot() == log.state.snapshot()


def test_a_damaged_item_is_counted_and_skipped() -> None:
    log = Log()
    log.message("te/device/b//", {"@id": "b"})
    name = next(k for k, _ in log.state.scan(b"E", b"F") if b"device/b//" in k)
    restored = MemoryState({name: b"\xc1"})
    log.stage.derive(restored, name, b"\xc1")
    assert restored.get(name) is None
    assert log.stage.gauges(restored)["damaged"] == 1


def test_a_registration_whose_pending_entry_is_damaged_does_not_wait_any_more() -> None:
    log = Log()
    log.message("te/cell/b//", {"@type": "child-device", "@parent": "cell/a//"})
    items = {key: b"\xc1" if key[:1] == b"P" else value for key, value in log.state.snapshot().items()}
    restored = MemoryState({key: value for key, value in items.items() if key[0] in log.stage.primary})
    for key, value in restored.snapshot().items():
        log.stage.derive(restored, key, value)
    assert log.stage.gauges(restored)["damaged"] == 2
    log.state = restored
    assert kinds(log.message("te/cell/a//", {"@type": "child-device"})) == [b"register"]


def test_caching_a_message_writes_only_its_own_keys() -> None:
    """Section 6.6: what a message costs does not depend on what is cached already."""
    log = Log(auto_register=False)
    log.message("te/device/a//", {"@parent": "device/p", "note": "x" * 5000})
    for n in range(50):
        log.message("te/device/a///m/t", n)
    before = log.state.snapshot()
    log.message("te/device/a///m/t", 50)
    after = log.state.snapshot()
    changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
    assert sum(k[:1] == b"M" for k in changed) == 1
    assert not any(k[:1] in (b"W", b"E") for k in changed)
    assert sum(len(after.get(k, b"")) for k in changed) < 300


def test_an_entity_knows_whether_it_has_retained_topics_and_old_items_count_as_if() -> None:
    """Only an entity that says it has none saves the look (section 9); items from before the flag do not say so."""
    log = Log()
    log.message("te/device/a///m/t", 1)
    store, name = Store(log.state), b"Ete\0device/a//\0"
    assert not store.has_retained("te", "device/a//")
    log.message("te/device/a///m/t", 2, retain=True)
    assert store.has_retained("te", "device/a//")
    members = msgspec.msgpack.decode(log.state.get(name) or b"")
    log.state.put(name, msgspec.msgpack.encode(members[:-1]))
    assert store.has_retained("te", "device/a//")
    log.message("te/device/a///m/t", 3)
    assert [e.key for e in to("outbound", log.message("te/device/a//", b""))] == [b"te/device/a//"]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_retained_topics_are_cleared_alike_in_chunks_of_any_size(chunk: int) -> None:
    topics = ["te/device/a///m/t", "te/device/a///twin/x", "te/device/a///m/t", "te/device/a///a/x"]
    records = [
        Record(0, at, at, b"te", b"1", (("topic", topic.encode()), ("retain", retain)))
        for at, (topic, retain) in enumerate(zip(topics, (b"1", b"1", b"0", b"1"), strict=True))
    ]
    records.append(Record(0, 9, 9, b"te", b"", (("topic", b"te/device/a//"), ("retain", b"1"))))
    base, stage, out = MemoryState(), RegistrationStage(RegistrationConfig()), list[Emission]()
    for first in range(0, len(records), chunk):
        overlay = Overlay(base)
        for record in records[first : first + chunk]:
            stage.apply(overlay, record, out.append)
        base.commit(overlay.mutations)
    cleared = [e.key for e in to("outbound", out) if e.value == b""]
    assert cleared == [b"te/device/a///a/x", b"te/device/a///twin/x", b"te/device/a//"]


def outbound(out: list[Emission]) -> list[Emission]:
    return to("outbound", out)


def test_the_echo_of_an_automatic_registration_has_no_effect() -> None:
    log = Log()
    (sent,) = outbound(log.message("te/device/a///m/temp", {"t": 1}))
    before = dict(log.state.scan(b"E", b"F"))
    assert kinds(log.message((sent.key or b"").decode(), sent.value, retain=True)) == []
    assert log.stage.gauges(log.state)["no_effect"] == 1
    assert dict(log.state.scan(b"E", b"F")) == before


@pytest.mark.parametrize("registered", ["automatically", "over HTTP"])
def test_an_echo_that_a_patch_overtook_does_not_undo_it(registered: str) -> None:
    log = Log()
    log.message("te/device/hall//", {"@type": "child-device"})
    if registered == "automatically":
        out = log.message("te/device/a///m/temp", {"t": 1})
    else:
        out = log.request("POST", "/te/v1/entities", body={"@topic-id": "device/a//", "@type": "child-device"})
    first = next(e for e in outbound(out) if e.key == b"te/device/a//")
    (second,) = outbound(log.request("PATCH", "/te/v1/entities/device/a", body={"@parent": "device/hall//"}))
    for echo in (first, second):
        assert kinds(log.message("te/device/a//", echo.value, retain=True)) == []
    asked = answer(log.state, RegistrationConfig(), Request("GET", "/te/v1/entities/device/a"))
    assert asked.body["@parent"] == "device/hall//"


def test_every_reason_of_a_message_is_told_from_the_start_and_reasons_are_counted_by_root() -> None:
    log = Log(roots={"te": "main-dev", "other": "o"})
    assert log.stage.gauges(log.state)["refused.id_in_use"] == 0
    log.message("te/device/a//", {"@type": "child-device"}, at=10)
    log.message("te/device/b//", {"@type": "child-device", "@id": "main-dev:device:a"}, at=20)
    log.message("te/line/b///m/t", b"{}", at=30)
    log.message("nobody/device/b//", b"{}", at=40)
    gauges = log.stage.gauges(log.state)
    assert (gauges["refused.id_in_use"], gauges["refused.invalid_topic"], gauges["pending"]) == (1, 1, 1)
    roots = {name: value for root, name, value in log.stage.root_gauges(log.state) if root == "te"}
    assert {name: value for name, value in roots.items() if value} == {
        "entities.device": 1, "entities.child-device": 1, "dropped.id_in_use": 1, "pending": 1, "telemetry": 1,
        "telemetry_bytes": 17, "idle": 1,
    }  # fmt: skip
    assert {root for root, *_ in log.stage.root_gauges(log.state)} == {"te"}
    assert isinstance(log.stage, HasAges)
    assert isinstance(log.stage, CountsRoots)


def test_the_age_of_the_oldest_pending_entity_is_told_on_the_clock_of_the_log() -> None:
    log = Log()
    assert log.stage.ages(log.state) == {"oldest_pending": 0}
    log.message("te/line/b///m/t", b"{}", at=30)
    log.message("te/line/c///m/t", b"{}", at=50)
    assert log.stage.ages(log.state) == {"oldest_pending": 20}
    log.message("te/line/b//", {"@type": "child-device"}, at=70)
    assert log.stage.ages(log.state) == {"oldest_pending": 20}
    log.message("te/line/c//", {"@type": "child-device"}, at=90)
    assert log.stage.ages(log.state) == {"oldest_pending": 0}
