"""Secrets of the job file: by reference, from the environment or from files (spark-writer.md 12).

Theory: `${env:NAME}` and `${file:PATH}` in any text of the job file stand for what is there when the job starts; the
job file itself then holds no secret and can be a ConfigMap. Inside a URL what is put in is percent-encoded, and inside
double quotes (a JAAS line) it is escaped, so a secret may hold any character. Spark's own settings are shown by its web
page: there a reference is refused, and so is a setting that holds, in clear, what a reference stands for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headrace_core.errors import ConfigError

SPARK: Final = "spark"
_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]+)\}")


_PASSWORD: Final = re.compile(r"(://[^\s/@:]*):[^\s/@]+@")
_SHORT: Final = 4
"""A shorter text is no secret, and stands in too many words."""
_KNOWN: set[str] = set()
"""What references of this process's job file stand for."""


def redacted(text: str) -> str:
    """A text for a log: without what references stand for, and without passwords in URLs."""
    for secret in sorted(_KNOWN, key=len, reverse=True):
        text = text.replace(secret, "...")
    return _PASSWORD.sub(r"\1:...@", text)


def resolve(plain: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The job file with all references replaced, and what they stand for. Raises `ConfigError`, which never shows a
    secret."""
    secrets: set[str] = set()
    found = {name: _replaced(name, value, secrets) for name, value in plain.items()}
    _KNOWN.update(secret for secret in secrets if len(secret) >= _SHORT)
    return found, frozenset(secrets)


def refuse(spark: Mapping[str, str], secrets: frozenset[str]) -> None:
    """Raise `ConfigError` if a setting of Spark holds a secret."""
    for name, value in spark.items():
        for secret in secrets:
            if secret in str(value):
                raise ConfigError(SPARK, f"{name} holds a secret, and Spark's web page shows its settings")


@contextmanager
def hidden(secrets: frozenset[str]) -> Iterator[None]:
    """A `ConfigError` that comes out of this block shows no secret."""
    try:
        yield
    except ConfigError as error:
        problem = str(error).removeprefix(f"{error.field}: ")
        for secret in secrets:
            problem = problem.replace(secret, "...")
        raise ConfigError(error.field, problem) from None


def _replaced(field: str, value: Any, secrets: set[str]) -> Any:
    match value:
        case str():
            return _text(field, value, secrets)
        case list():
            return [_replaced(field, one, secrets) for one in value]
        case dict():
            return {name: _replaced(f"{field}.{name}", one, secrets) for name, one in value.items()}
        case _:
            return value


def _text(field: str, value: str, secrets: set[str]) -> str:
    if _REFERENCE.search(value) and field.split(".")[0] == SPARK:
        raise ConfigError(SPARK, f"{field.partition('.')[2]} must hold no secret: Spark's web page shows it")
    whole = _REFERENCE.fullmatch(value)

    def put(found: re.Match[str]) -> str:
        secret = _read(field, found[1], found[2])
        secrets.add(secret)
        if whole:
            return secret
        return quote(secret, safe="") if "://" in value[: found.start()] else re.sub(r'(["\\])', r"\\\1", secret)

    return _REFERENCE.sub(put, value)


def _read(field: str, kind: str, name: str) -> str:
    """What a reference stands for; the last line's end is not part of it. Raises `ConfigError`."""
    if kind == "env":
        found = os.environ.get(name)
        if found is None:
            raise ConfigError(field, f"the environment has no {name}")
    else:
        try:
            found = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConfigError(field, f"{name} cannot be read: {reason}") from None
    found = found.removesuffix("\n").removesuffix("\r")
    if not found:
        raise ConfigError(field, f"{name} is empty")
    return found
