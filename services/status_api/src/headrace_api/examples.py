"""What the answers look like: requests and the exact answers to them, for the OpenAPI document.

They are what the service answers after the messages of `MESSAGES`; a test sends these and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace_api import problems
from headrace_core.registration.routes import ABSENT

START_MS = 1_760_000_000_000

MESSAGES: tuple[tuple[int, str, Any], ...] = (
    (0, "te/device/press//", {"@type": "child-device", "name": "Press 7"}),
    (10, "te/device/press/service/monitor", {"@type": "service"}),
    (20, "te/device/press///twin/os", {"family": "linux", "version": 6}),
    (30, "te/device/press///config", {"interval_s": 5}),
    (40, "te/line/oven//", {"@type": "child-device", "@parent": "line/hall//"}),
    (50, "te/line/oven///m/temperature", {"celsius": 180.5}),
    (60, "te/device/press//", {"@type": "service"}),
    (5_000, "te/device/press///m/load", {"percent": 71}),
)
"""Milliseconds after START_MS, MQTT topic, payload."""

MAIN = {"@topic-id": "device/main//", "@type": "device", "@id": "main-dev"}
PRESS = {
    "@topic-id": "device/press//", "@type": "child-device", "@id": "main-dev:device:press", "@parent": "device/main//",
}  # fmt: skip
MONITOR = {
    "@topic-id": "device/press/service/monitor", "@type": "service", "@id": "main-dev:device:press:service:monitor",
    "@parent": "device/press//",
}  # fmt: skip
OVEN_STATUS = {
    "@topic-id": "line/oven//", "root": "te", "state": "pending", "since": START_MS + 40,
    "expires_at": START_MS + 3_600_040, "registration": True, "waiting_for": "line/hall//",
    "cached": {"telemetry": 1, "metadata": 0, "bytes": 111}, "@type": "child-device", "age_ms": 4_960,
    "missing": ["line/hall//"], "cycle": False,
}  # fmt: skip
PRESS_STATUS = {
    "@topic-id": "device/press//", "root": "te", "state": "registered", "since": START_MS, "@type": "child-device",
    "@id": "main-dev:device:press", "@parent": "device/main//", "automatic": False,
    "last_error": {"reason": "type_change", "receipt_time": START_MS + 60},
}  # fmt: skip
NOTHING_STATUS = {"@topic-id": "device/nobody//", "root": "te", "state": "unknown", "since": None}


class Example(NamedTuple):
    """`template` is the path of the OpenAPI document that `path` is of; ABSENT: no body in the answer, or `sent`."""

    template: str
    name: str
    path: str
    status: int
    body: Any
    method: str = "GET"
    sent: Any = ABSENT
    headers: Mapping[str, str] = {}


def _problem(status: int, reason: str, detail: str, path: str) -> dict[str, Any]:
    return problems.document(status, reason, detail, path.partition("?")[0])


ENTITIES = "/{root}/v1/entities"
ENTITY = ENTITIES + "/{s1}/{s2}"
FULL = ENTITIES + "/{s1}/{s2}/{s3}/{s4}"
REGISTRATIONS = "/{root}/v1/registrations"
REGISTRATION = REGISTRATIONS + "/{s1}/{s2}"
FULL_REGISTRATION = REGISTRATIONS + "/{s1}/{s2}/{s3}/{s4}"

NOT_REGISTERED = "device/nobody// is not registered"

EXAMPLES: tuple[Example, ...] = (
    Example(ENTITIES, "all", "/te/v1/entities", 200, [MAIN, PRESS, MONITOR]),
    Example(ENTITIES, "services", "/te/v1/entities?type=service", 200, [MONITOR]),
    Example(ENTITIES, "subtree", "/te/v1/entities?root=device/press", 200, [PRESS, MONITOR]),
    Example(ENTITIES, "bad_limit", "/te/v1/entities?limit=0", 400,
            _problem(400, "invalid_query", "limit is 1 to 1000", "/te/v1/entities")),
    Example(ENTITIES, "no_root", "/nowhere/v1/entities", 404,
            _problem(404, "not_found", "no such root", "/nowhere/v1/entities")),
    Example(ENTITY, "device", "/te/v1/entities/device/press", 200, PRESS),
    Example(ENTITY, "nobody", "/te/v1/entities/device/nobody", 404,
            _problem(404, "not_found", NOT_REGISTERED, "/te/v1/entities/device/nobody")),
    Example(ENTITY, "bad_id", "/te/v1/entities/device/%2B", 400,
            _problem(400, "invalid_topic_id", "contains +, # or NUL", "/te/v1/entities/device/%2B")),
    Example(FULL, "service", "/te/v1/entities/device/press/service/monitor", 200, MONITOR),
    Example(FULL, "nobody", "/te/v1/entities/device/nobody//", 404,
            _problem(404, "not_found", NOT_REGISTERED, "/te/v1/entities/device/nobody//")),
    Example(FULL + "/twin", "all", "/te/v1/entities/device/press///twin", 200,
            {"name": "Press 7", "os": {"family": "linux", "version": 6}}),
    Example(FULL + "/twin", "nobody", "/te/v1/entities/device/nobody///twin", 404,
            _problem(404, "not_found", NOT_REGISTERED, "/te/v1/entities/device/nobody///twin")),
    Example(FULL + "/twin/{key}", "os", "/te/v1/entities/device/press///twin/os", 200,
            {"family": "linux", "version": 6}),
    Example(FULL + "/twin/{key}", "no_key", "/te/v1/entities/device/press///twin/cpu", 404,
            _problem(404, "not_found", "no twin data 'cpu'", "/te/v1/entities/device/press///twin/cpu")),
    Example(FULL + "/config", "config", "/te/v1/entities/device/press///config", 200, {"interval_s": 5}),
    Example(FULL + "/config", "none", "/te/v1/entities/device/main///config", 404,
            _problem(404, "not_found", "no configuration published", "/te/v1/entities/device/main///config")),
    Example(FULL + "/config/{key}", "member", "/te/v1/entities/device/press///config/interval_s", 200, 5),
    Example(FULL + "/config/{key}", "no_member", "/te/v1/entities/device/press///config/x", 404,
            _problem(404, "not_found", "no member 'x'", "/te/v1/entities/device/press///config/x")),
    Example(REGISTRATIONS, "pending", "/te/v1/registrations?state=pending", 200,
            {"items": [OVEN_STATUS], "next": None}),
    Example(REGISTRATIONS, "bad_state", "/te/v1/registrations?state=lost", 400,
            _problem(400, "invalid_query", "state is a list of unknown, pending, registered, expired, removed",
                     "/te/v1/registrations")),
    Example(REGISTRATIONS, "no_root", "/nowhere/v1/registrations", 404,
            _problem(404, "not_found", "no such root", "/nowhere/v1/registrations")),
    Example(REGISTRATION, "waiting", "/te/v1/registrations/line/oven", 200, OVEN_STATUS),
    Example(REGISTRATION, "refused", "/te/v1/registrations/device/press", 200, PRESS_STATUS),
    Example(REGISTRATION, "unknown", "/te/v1/registrations/device/nobody", 200, NOTHING_STATUS),
    Example(FULL_REGISTRATION, "waiting", "/te/v1/registrations/line/oven//", 200, OVEN_STATUS),
    Example(REGISTRATION, "bad_wait", "/te/v1/registrations/device/press?wait=61", 400,
            _problem(400, "invalid_query", "wait is 0 to 60 seconds", "/te/v1/registrations/device/press")),
    Example(REGISTRATION, "bad_id", "/te/v1/registrations/device/%23", 400,
            _problem(400, "invalid_topic_id", "contains +, # or NUL", "/te/v1/registrations/device/%23")),
)  # fmt: skip

SAW = {"@topic-id": "device/saw//", "@type": "child-device", "name": "Saw 2"}
TWIN, TWIN_KEY = FULL + "/twin", FULL + "/twin/{key}"
OS = {"family": "linux", "version": 7}

WRITES: tuple[Example, ...] = (
    Example(ENTITIES, "registered", "/te/v1/entities", 201, {"@topic-id": "device/saw//"}, "POST", SAW),
    Example(ENTITIES, "no_parent", "/te/v1/entities", 400,
            _problem(400, "no_parent", "line/hall// is not registered", "/te/v1/entities"), "POST",
            {"@topic-id": "line/oven//", "@type": "child-device", "@parent": "line/hall//"}),
    Example(ENTITIES, "exists", "/te/v1/entities", 409,
            _problem(409, "exists", "device/press// is registered", "/te/v1/entities"), "POST",
            {"@topic-id": "device/press"}),
    Example(ENTITIES, "no_topic_id", "/te/v1/entities", 422,
            _problem(422, "missing_topic_id", "@topic-id is required", "/te/v1/entities"), "POST", {"name": "?"}),
    Example(ENTITIES, "form", "/te/v1/entities", 415,
            _problem(415, "unsupported_media_type", "text/plain is not JSON", "/te/v1/entities"), "POST", SAW,
            {"content-type": "text/plain"}),
    Example(ENTITY, "moved", "/te/v1/entities/device/press", 200, PRESS | {"@health": "device/press/service/monitor"},
            "PATCH", {"@health": "device/press/service/monitor"}),
    Example(FULL, "moved", "/te/v1/entities/device/press//", 200, PRESS | {"@health": "device/press/service/monitor"},
            "PATCH", {"@health": "device/press/service/monitor"}),
    Example(FULL, "removed", "/te/v1/entities/device/press/service/monitor", 200, [MONITOR], "DELETE"),
    Example(ENTITY, "unknown_field", "/te/v1/entities/device/press", 400,
            _problem(400, "unknown_field", "'name' cannot be changed", "/te/v1/entities/device/press"), "PATCH",
            {"name": "Press 8"}),
    Example(ENTITY, "nobody", "/te/v1/entities/device/nobody", 404,
            _problem(404, "not_found", NOT_REGISTERED, "/te/v1/entities/device/nobody"), "PATCH", {}),
    Example(ENTITY, "other_version", "/te/v1/entities/device/press", 412,
            _problem(412, "precondition_failed", "If-Match names another version", "/te/v1/entities/device/press"),
            "PATCH", {}, {"if-match": '"0123"'}),
    Example(ENTITY, "removed", "/te/v1/entities/device/press", 200, [PRESS, MONITOR], "DELETE"),
    Example(ENTITY, "pending", "/te/v1/entities/line/oven", 204, ABSENT, "DELETE"),
    Example(ENTITY, "main", "/te/v1/entities/device/main", 400,
            _problem(400, "main_protected", "the main device cannot be removed", "/te/v1/entities/device/main"),
            "DELETE"),
    Example(TWIN, "replaced", "/te/v1/entities/device/press///twin", 200, {"os": OS}, "PUT", {"os": OS}),
    Example(TWIN, "bad_key", "/te/v1/entities/device/press///twin", 400,
            _problem(400, "invalid_twin_key", "'@os' cannot be a twin key", "/te/v1/entities/device/press///twin"),
            "PUT", {"@os": 1}),
    Example(TWIN, "removed", "/te/v1/entities/device/press///twin", 204, ABSENT, "DELETE"),
    Example(TWIN_KEY, "changed", "/te/v1/entities/device/press///twin/os", 200, OS, "PUT", OS),
    Example(TWIN_KEY, "null", "/te/v1/entities/device/press///twin/os", 204, ABSENT, "PUT", None),
    Example(TWIN_KEY, "no_value", "/te/v1/entities/device/press///twin/os", 400,
            _problem(400, "invalid_payload", "a value is required", "/te/v1/entities/device/press///twin/os"), "PUT"),
    Example(TWIN_KEY, "nobody", "/te/v1/entities/device/nobody///twin/os", 404,
            _problem(404, "not_found", NOT_REGISTERED, "/te/v1/entities/device/nobody///twin/os"), "PUT", 1),
    Example(TWIN_KEY, "removed", "/te/v1/entities/device/press///twin/os", 204, ABSENT, "DELETE"),
)  # fmt: skip
