"""Rules of the engine that need a history of their own: order of release, ages, fixed content, paths and pages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace_core.errors import ConfigError
from headrace_core.registration import queries
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.effects import Dropped, Passed, Published, Registered, TwinChanged
from headrace_core.registration.engine import Engine
from headrace_core.registration.message import same
from headrace_core.registration.routes import ABSENT, Request, Response
from headrace_core.state import MemoryState


class Gateway:
    def __init__(self, **config: Any) -> None:
        self.config = RegistrationConfig(**config)
        self.state = MemoryState()
        self.ref = -1

    @property
    def engine(self) -> Engine:
        return Engine(self.state, self.config)

    def send(self, topic: str, value: Any, at: int = 0) -> list[Any]:
        self.ref += 1
        payload = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.engine.message(topic, payload, retained=True, receipt_ms=at, ref=self.ref)

    def child(self, name: str, parent: str | None = None, /, **members: Any) -> list[Any]:
        value = {"@type": "child-device"} | ({"@parent": f"device/{parent}//"} if parent else {}) | members
        return self.send(f"te/device/{name}//", value)

    def get(self, path: str, **headers: str) -> Response:
        return queries.answer(self.state, self.config, Request("GET", path, headers))

    def write(self, method: str, path: str, body: Any = ABSENT, **headers: str) -> tuple[list[Any], Response]:
        return self.engine.request(Request(method, path, headers, body), 0)


def registered(effects: list[Any]) -> list[str]:
    return [e.entity.split("/")[1] for e in effects if isinstance(e, Registered)]


def test_release_is_depth_first_with_siblings_in_order_of_arrival() -> None:
    gateway = Gateway()
    for name, parent in (("b", "p"), ("a", "p"), ("a1", "a"), ("b2", "b"), ("b1", "b"), ("b21", "b2")):
        gateway.child(name, parent)
    assert registered(gateway.child("p")) == ["p", "b", "b2", "b21", "b1", "a", "a1"]


def test_a_waiting_child_sent_again_keeps_its_place_and_its_last_message_counts() -> None:
    gateway = Gateway()
    gateway.child("a", "p", name="old")
    gateway.child("b", "p")
    gateway.child("a", "p", name="new")
    effects = gateway.child("p")
    assert registered(effects) == ["p", "a", "b"]
    assert [e.value for e in effects if isinstance(e, TwinChanged)] == ["new"]


def test_a_waiting_child_that_comes_back_to_its_first_parent_is_at_the_end_of_the_queue() -> None:
    gateway = Gateway()
    gateway.child("a", "p")
    gateway.child("b", "p")
    gateway.child("a", "q")
    gateway.child("a", "p")
    assert registered(gateway.child("p")) == ["p", "b", "a"]


def test_a_chain_of_any_length_is_released_at_once() -> None:
    gateway = Gateway(metadata_cache_bytes=10**9)
    for n in range(3000, 0, -1):
        gateway.child(f"d{n}", f"d{n - 1}")
    assert len(registered(gateway.child("d0"))) == 3001


def test_an_entry_emptied_by_eviction_starts_anew() -> None:
    gateway = Gateway(auto_register=False, telemetry_cache_size=1)
    gateway.send("te/device/a///m/t", 1, at=10)
    gateway.send("te/device/b///m/t", 1, at=20)
    assert gateway.get("/te/v1/registrations/device/a").body["state"] == "unknown"
    gateway.send("te/device/a///m/t", 2, at=30)
    assert gateway.get("/te/v1/registrations/device/a").body["since"] == 30


def test_a_new_type_while_waiting_is_what_the_status_shows() -> None:
    gateway = Gateway()
    gateway.child("a", "p")
    gateway.send("te/device/a//", {"@type": "service", "@parent": "device/p"})
    assert gateway.get("/te/v1/registrations/device/a").body["@type"] == "service"


def test_the_content_compared_with_is_the_last_accepted_one() -> None:
    gateway = Gateway()
    gateway.child("a", a=1, b=1)
    gateway.send("te/device/a///twin/b", 5)
    gateway.child("a", a=1)
    effects = gateway.child("a", a=1, b=1)
    assert [(e.key, e.value) for e in effects if isinstance(e, TwinChanged)] == [("b", 1)]


def test_an_http_registration_is_published_with_its_content_and_its_echo_puts_nothing_out() -> None:
    gateway = Gateway()
    effects, _ = gateway.write("POST", "/te/v1/entities", {"@topic-id": "device/a", "@type": "child-device", "k": 1})
    (published,) = [e for e in effects if isinstance(e, Published)]
    assert json.loads(published.payload) == {
        "@type": "child-device",
        "@id": "main-dev:device:a",
        "@parent": "device/main//",
        "k": 1,
    }
    echo = gateway.send(published.topic, published.payload)
    assert not [e for e in echo if isinstance(e, (Registered, TwinChanged, Passed, Published))]


def test_a_patch_with_the_tag_of_another_version_changes_nothing() -> None:
    gateway = Gateway()
    gateway.child("a")
    gateway.child("b")
    tag = gateway.get("/te/v1/entities/device/b").headers["ETag"]
    body = {"@parent": "device/a"}
    _, first = gateway.write("PATCH", "/te/v1/entities/device/b", body, **{"If-Match": tag})
    _, second = gateway.write("PATCH", "/te/v1/entities/device/b", {"@parent": "device/main"}, **{"If-Match": tag})
    assert (first.status, second.status) == (200, 412)
    assert gateway.get("/te/v1/entities/device/b").body["@parent"] == "device/a//"


def test_pages_of_the_entity_list_follow_the_link() -> None:
    gateway = Gateway()
    for n in range(5):
        gateway.child(f"d{n}")
    path, seen = "/te/v1/entities?limit=2&type=child-device", []
    while path:
        answer = gateway.get(path)
        seen += [document["@topic-id"] for document in answer.body]
        path = answer.headers.get("Link", "<>").split(">")[0][1:]
    assert seen == [f"device/d{n}//" for n in range(5)]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/te/v1/entities/device%2Fa", "invalid_topic_id"),
        ("/te/v1/entities/device/%ff", "invalid_topic_id"),
        ("/te/v1/entities?root=device/a&parent=device/a", "invalid_query"),
        ("/te/v1/entities?nonsense=1", "invalid_query"),
        ("/te/v1/entities?cursor=W10", "invalid_cursor"),
        ("/te/v1/nothing", "not_found"),
        ("/te/v1/entities/device/a///twin/a/b", "not_found"),
    ],
)
def test_reads_that_are_refused(path: str, reason: str) -> None:
    answer = Gateway().get(path)
    assert answer.body["reason"] == reason


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"a":"\\ud800"}', b'{"a":NaN}', b"\xff", b""])
def test_payloads_that_are_no_json_never_raise(payload: bytes) -> None:
    gateway = Gateway()
    gateway.send("te/device/a//", payload)
    gateway.send("te/device/a///twin/x", payload)
    gateway.send("te/device/a///config", payload)
    assert gateway.get("/te/v1/entities/device/a///config").status == 404


TWICE = b'{"@type":"child-device","@type":"child-device"}'


@pytest.mark.parametrize("payload", [TWICE, b'{"@type":"child-device","a":{"b":1,"\\u0062":2}}', b'{"a":null,"a":1}'])
def test_a_registration_with_a_key_twice_is_no_json_object(payload: bytes) -> None:
    gateway = Gateway()
    (dropped,) = [e for e in gateway.send("te/device/a//", payload) if isinstance(e, Dropped)]
    assert (dropped.reason, dropped.detail) == ("invalid_payload", "a key stands twice in one object")
    assert gateway.get("/te/v1/entities/device/a").status == 404


def test_data_with_a_key_twice_passes_unjudged_and_is_no_value() -> None:
    gateway = Gateway()
    for channel in ("twin/x", "config"):
        gateway.send(f"te/device/a///{channel}", {"b": 0})
        effects = gateway.send(f"te/device/a///{channel}", b'{"b":1,"b":2}')
        assert [e.message.payload for e in effects if isinstance(e, Passed)] == [b'{"b":1,"b":2}']
        assert gateway.get(f"/te/v1/entities/device/a///{channel}").body == {"b": 0}


def test_json_values_are_compared_as_values() -> None:
    assert same({"a": [1, {"b": None}], "c": 1}, {"c": 1.0, "a": [1, {"b": None}]})
    assert not same({"a": True}, {"a": 1})
    assert not same([1], [1, 2])


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="roots"):
        RegistrationConfig(roots={"te": "x", "gw": "x"})
    with pytest.raises(ConfigError, match="pending_ttl"):
        RegistrationConfig(pending_ttl=0)
