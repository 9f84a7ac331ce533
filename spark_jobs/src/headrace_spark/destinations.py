"""Sinks of mode `keyed` that are no SQL databases, as the job file names them, and what must hold for each.

    http://...  https://...   a bulk interface over HTTP
    call:module:function      a function
    delta:URI                 a Delta Lake table: an absolute path, or s3://, abfss://, gs://...

The first two answer for each row, so their rows have tries, the delayed retry topic and rounds (spark-writer.md 8). A
commit in Delta Lake is done or not, whole.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace_core.errors import ConfigError
from headrace_spark.transforms.rows import KEY_COLUMNS, VERSION_COLUMNS

if TYPE_CHECKING:
    from headrace_spark.settings import Settings

HTTP: Final = ("http://", "https://")
POSTGRES: Final = ("postgresql://", "postgres://")
CALL: Final = "call:"
DELTA: Final = "delta:"
CARRIED: Final = ("id", "traceparent", "tracestate")
"""Headers that go with the rows to a function, if the job file names none."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_CALL: Final = re.compile(r"call:[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_URI: Final = re.compile(r"(/|[a-z][a-z0-9+.-]*://).+")


def known(sink: str) -> bool:
    """Whether the sink is one of these."""
    return sink.startswith((*HTTP, CALL, DELTA))


def over_network(sink: str) -> bool:
    """Whether the way to the sink leaves this host, as far as its name tells; of a function it tells nothing."""
    try:
        if sink.startswith(POSTGRES):
            given = conninfo_to_dict(sink)
            hosts = str(given.get("hostaddr") or given.get("host") or "").split(",")
        elif sink.startswith(HTTP):
            hosts = [urlsplit(sink).hostname or ""]
        else:
            return is_delta(sink) and "://" in sink and not sink.startswith((DELTA + "file:", DELTA + "memory:"))
    except (psycopg.ProgrammingError, ValueError):  # told by the checks of the sink itself
        return False
    return any(not _of_this_host(host) for host in hosts)


def _of_this_host(name: str) -> bool:
    """Loopback, or a socket's folder, or none."""
    if name in ("", "localhost") or name.startswith(("/", "@")):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def is_delta(sink: str) -> bool:
    """Whether it is a Delta Lake table."""
    return sink.startswith(DELTA)


def answers(settings: Settings) -> bool:
    """Whether the job's sink answers for each row."""
    return settings.mode == "keyed" and settings.sink.startswith((*HTTP, CALL))


def retries(settings: Settings) -> bool:
    """Whether the job has a delayed retry topic."""
    return answers(settings) and settings.on_exhausted == "retry" and settings.max_rounds > 0


def sent_by_tasks(settings: Settings) -> bool:
    """Whether tasks send the requests that the driver planned."""
    return settings.mode == "lanes" or answers(settings) or upserts(settings)


def upserts(settings: Settings) -> bool:
    """Whether tasks upsert into a table of PostgreSQL. SQLite has one writer, and Delta Lake one commit at a time."""
    return settings.mode == "keyed" and settings.path == "direct" and settings.sink.startswith(POSTGRES)


def check_lanes(found: Settings) -> None:
    """Raise `ConfigError` for the first field that cannot work with the sink in mode `lanes`."""
    named = found.sink.startswith((*HTTP, CALL))
    _require(named, "sink", "must be call:module:function or http(s)://... for the mode lanes")
    if found.sink.startswith(CALL):
        _require(_CALL.fullmatch(found.sink), "sink", "must be call:module:function")
    else:
        _http(found)


def check_tasks(found: Settings, local: bool) -> None:
    """Raise `ConfigError` if tasks on other hosts could not do their part; `local`: all are on this one."""
    shared = local or found.state_dsn.startswith(POSTGRES)
    _require(shared, "state_dsn", "must be PostgreSQL: tasks on other hosts record there what they sent")
    _require(local or found.lease_store, "master", "must be local without a lease_store: tasks on every host send")


def check_keying(found: Settings) -> None:
    """Raise `ConfigError` for a key or version that cannot be."""
    for field, given in (("key", found.key), ("version", found.version)):
        tables = "must not be given: only http(s) and call sinks in mode keyed have it; a table's key is its own"
        _require(not given or answers(found), field, tables)
    for name in found.key:
        _require(name in KEY_COLUMNS, "key", f"{name!r} is none of the columns {', '.join(KEY_COLUMNS)}")
    _require(len(set(found.key)) == len(found.key), "key", "names a column twice")
    if found.version:
        names = f"must be one of {', '.join(VERSION_COLUMNS)}"
        _require(found.version in VERSION_COLUMNS, "version", f"{found.version!r} {names}")
        _require(found.version not in found.keying.key, "version", "is part of the key, so it never differs")


def check_headers(found: Settings) -> None:
    """Raise `ConfigError` for headers that cannot be carried."""
    if found.headers is None:
        return
    tables = (
        "must not be given: only http(s) and call sinks take headers; the column batch of a table names the document"
    )
    _require(found.sink.startswith((*HTTP, CALL)), "headers", tables)
    _require(all(found.headers), "headers", "must be names of Kafka headers")
    _require(len(set(found.headers)) == len(found.headers), "headers", "names a header twice")


def check(found: Settings) -> None:
    """Raise `ConfigError` for the first field that cannot work with such a sink."""
    _require(found.path == "direct", "path", "must be direct: the staged path is PostgreSQL's")
    if is_delta(found.sink):
        _delta(found)
        return
    if found.sink.startswith(CALL):
        _require(_CALL.fullmatch(found.sink), "sink", "must be call:module:function")
    else:
        _http(found)
    for topic in (found.again_topic, found.delayed_topic):
        _require(not topic or _TOPIC.fullmatch(topic), "retry_topic", f"{topic!r} is no name of a Kafka topic")
    apart = not found.delayed_topic or found.delayed_topic not in (*found.subscribed, found.dead_letter_topic)
    _require(apart, "retry_topic", "must be none of the topics that the job reads, and not the dead letters'")
    twice = [topic for topic in found.topics if topic == found.again_topic]
    _require(not twice, "topics", "must not name <prefix><job>.again: the job reads it anyway")


def _delta(found: Settings) -> None:
    _require(_URI.fullmatch(found.sink.removeprefix(DELTA)), "sink", "must be delta: and an absolute path or a URI")
    _require(not found.cost_of.learned, "cost", "must not be learned(...) for Delta Lake, which tells no charge")
    by_row = found.cost_of.per_row > 0 or found.cost_of.column
    _require(not by_row, "cost", "must be per_kib(n) and per_request(n) for Delta Lake, where a request is a commit")


def _http(found: Settings) -> None:
    try:
        parts = urlsplit(found.sink)
        complete = bool(parts.hostname) and (parts.port is None or parts.port > 0) and not parts.fragment
    except ValueError:
        complete = False
    _require(complete, "sink", "must be a whole URL, such as https://host:9200/index/_bulk")
    told = found.charge_header or not found.cost_of.learned
    _require(told, "cost", "learned(...) needs charge_header, which tells what a request took")


def _require(holds: Any, field: str, problem: str) -> None:
    if not holds:
        raise ConfigError(field, problem)
