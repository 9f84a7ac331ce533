"""What each value of the job file must be by itself, whatever the others say; `settings.py` checks what must fit.

Nothing is looked up here: whether a broker, a database or a token's file is there shows at the start.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg import conninfo

from headrace_core.errors import ConfigError
from headrace_spark.database import is_postgres, sqlite_path
from headrace_spark.folders.port import is_uri

if TYPE_CHECKING:
    from headrace_spark.settings import Settings

EMBEDDED: Final = "embedded"
MOST: Final = 10**12
"""Of any number: 31 years in ms, and far from where clocks and databases overflow."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TABLE: Final = re.compile(r"(?!hr_)[A-Za-z_][A-Za-z0-9_]{0,62}", re.IGNORECASE)
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SERVERS: Final = re.compile(r"([A-Za-z_]+://)?([^\s,:/\[\]]+|\[[0-9A-Fa-f:.%]+\]):[0-9]{1,5}")
_MASTER: Final = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|(spark|k8s)://\S+")
_FRACTIONS: Final = {"share": (0, 1), "max_corrupt_share": (0, 1), "expected_cost_per_record": (0, MOST)}
_AT_LEAST_1: Final = (
    "capacity", "max", "max_bytes", "trigger_ms", "max_document_bytes", "stop_timeout_ms", "sink_down_max_ms",
    "seen_retention_ms", "max_send_ms", "weight", "max_attempts", "request_timeout_ms",
    "max_concurrent_batches", "max_wait_ms",
)  # fmt: skip
_AT_LEAST_0: Final = (
    "max_rounds", "lateness_ms", "linger_ms", "factor", "min_offsets_per_trigger", "max_trigger_delay_ms",
)  # fmt: skip
_WHOLE: Final = (
    "spark.cores.max", "spark.dynamicAllocation.maxExecutors", "spark.executor.cores", "spark.executor.instances",
    "spark.task.cpus", "spark.task.maxFailures",
)  # fmt: skip


def check(found: Settings) -> None:
    """Raise `ConfigError` for the first value that can never be right."""
    _names(found)
    _numbers(found)
    _places(found)
    _spark(found)


def require(holds: Any, field: str, problem: str) -> None:
    """Raise `ConfigError` unless it holds."""
    if not holds:
        raise ConfigError(field, problem)


def dsn(field: str, value: str) -> None:
    """A URL of SQLite or PostgreSQL. What is wrong with it is told without showing it: it may hold a password."""
    try:
        if is_postgres(value):
            conninfo.conninfo_to_dict(value)
        else:
            require(sqlite_path(value).name, field, "must name a file")
    except psycopg.ProgrammingError:
        raise ConfigError(field, "is no PostgreSQL URL that can be read") from None
    except ConfigError as error:
        raise ConfigError(field, str(error).partition(": ")[2]) from None


def lease_store(found: Settings) -> None:
    """`lease_store` and the token of a coordinator."""
    scheme = found.lease_store.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        dsn("lease_store", found.lease_store)
    elif scheme in ("tcp", "redis", "rediss"):
        require(_host(found.lease_store, port=scheme == "tcp"), "lease_store", "must name a host and a port")
    else:
        names = "tcp://, postgresql://, postgres://, redis://, rediss://"
        raise ConfigError("lease_store", f"must be {EMBEDDED}, or begin with one of {names}")
    if scheme == "tcp" and not found.lease_token:
        require(found.lease_token_file, "lease_token", "or lease_token_file must be given for a coordinator")


def _names(found: Settings) -> None:
    require(_NAME.fullmatch(found.job), "job", "must be letters, digits, '.', '_' and '-'")
    require(_TABLE.fullmatch(found.table), "table", "must be an identifier that does not begin with hr_")
    prefix = not found.prefix or (_TOPIC.fullmatch(found.prefix) and len(found.prefix) <= 200)
    require(prefix, "prefix", "must be the beginning of names of Kafka topics")
    require(all(map(_TOPIC.fullmatch, found.subscribed)), "topics", "must be names of Kafka topics")
    require(len(set(found.topics)) == len(found.topics), "topics", "must not name a topic twice")
    apart = found.dead_letter_topic not in found.topics
    require(apart, "topics", "must not name the topic of the dead letters, which the job itself writes")
    require(not found.retry_topic or _TOPIC.fullmatch(found.retry_topic), "retry_topic", "must be the name of a topic")
    header = not found.charge_header or _HEADER.fullmatch(found.charge_header)
    require(header, "charge_header", "must be the name of a header")


def _numbers(found: Settings) -> None:
    for low, fields in ((1, _AT_LEAST_1), (0, _AT_LEAST_0)):
        for field in fields:
            require(low <= getattr(found, field) <= MOST, field, f"must be at least {low} and at most {MOST}")
    for field, (above, most) in _FRACTIONS.items():
        require(above < getattr(found, field) <= most, field, f"must be above {above} and at most {most}")
    require(0 <= (found.metrics_port or 0) <= 65535, "metrics_port", "must be from 0 to 65535")
    require(0 <= found.unused <= 0.5, "headroom", "must be from 0 to 0.5")
    require(0.001 <= found.max_share <= 1, "max_share", "must be from 0.001 to 1")
    for field, value in (("headroom", found.unused), ("max_share", found.max_share)):
        thousandths = value * 1000
        require(math.isclose(thousandths, round(thousandths), abs_tol=1e-6), field, "must go in steps of 0.001")


def _places(found: Settings) -> None:
    servers = found.kafka.split(",")
    require(
        all(_SERVERS.fullmatch(one.strip()) for one in servers), "kafka", "must be host:port, or several with commas"
    )
    require(found.checkpoint.strip(), "checkpoint", "must name a folder")
    if is_uri(found.checkpoint):
        _uri(found.checkpoint)
    require(found.metrics_host.strip(), "metrics_host", "must name an address of this host")


def _uri(checkpoint: str) -> None:
    """A folder below the root of a file system of Hadoop. Its name is logged and kept, so it must hold no password."""
    try:
        parts = urlsplit(checkpoint)
        secret, known = parts.password, parts.scheme != "file" or parts.netloc in ("", "localhost")
    except ValueError:
        raise ConfigError("checkpoint", "is no URL that can be read") from None
    below = parts.path.startswith("/") and parts.path.strip("/")
    require(below, "checkpoint", "must name a folder, as scheme://host/folder or file:/folder")
    require(not secret, "checkpoint", "must hold no password: it is logged")
    require(known, "checkpoint", "of a file: URL must be a folder of this host")
    plain = not {".", ".."} & set(parts.path.strip("/").split("/")) and not re.search(r"[?#*{}\\\s]", checkpoint)
    require(plain, "checkpoint", "must hold no '..', space, or other special character")


def _spark(found: Settings) -> None:
    masters = "must be local, local[n], local[n,tries], local-cluster[n,cores,mb], spark://..., yarn or k8s://..."
    require(_MASTER.fullmatch(found.master), "master", masters)
    for name in _WHOLE:
        value = found.spark.get(name, "1")
        whole = value.isascii() and value.isdigit() and int(value) >= 1
        require(whole, f"spark.{name}", "must be an integer of at least 1")
    reuse = "must be true: a Python worker's lease client lives as long as the worker"
    require(found.spark.get("spark.python.worker.reuse", "true").lower() == "true", "spark.python.worker.reuse", reuse)


def _host(url: str, *, port: bool) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (bool(parts.port) or not port)
    except ValueError:
        return False
