"""The timelines of `HEADRACE_STREAMS_TIMELINES`: name to settings (timeline.md 2, 11), checked before anything runs.

    {"retries": {"partitions": 4, "buffer": {"source": "writer.retry", "target": "writer.again", "delay_ms": 60000}}}

A timeline is a stage on `timeline.<name>.commands`, whose ticks and purges go to that topic too (`owner.py`). With a
buffer there is a second stage that makes commands of the records of the source; it takes no time from its input, so
whoever made the source may have stamped its records. `transaction` beside the settings is about how the worker writes
(`atomic.py`), and no part of the timeline's state. Topics are named as everywhere here: without the prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace_core.errors import ConfigError
from headrace_core.timeline.settings import Buffer, Settings
from headrace_core.timeline.source import SourceStage
from headrace_core.timeline.stage import TimelineStage
from headrace_streams.stages import BUILT_IN, StageSpec

FIELD = "timelines"
BUILT_IN_INPUTS = tuple(stage.input for stage in BUILT_IN.values())
"""Read by some worker, if not by this one."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}")
WHERE = re.compile(r"^(.*) - at `\$(.*)`$", re.DOTALL)
NO_SUCH = re.compile(r"^Object (contains unknown|missing required) field `(\w+)`$")


def load(timelines: Mapping[str, Any], prefix: str) -> list[StageSpec]:
    """The stages of all timelines. Raises ConfigError that names the field."""
    return [spec for name, values in timelines.items() for spec in _stages(name, values, prefix)]


def _stages(name: str, values: Any, prefix: str) -> list[StageSpec]:
    where = f"{FIELD}.{name}"
    if not NAME.fullmatch(name):
        raise ConfigError(where, "a name has 1 to 64 letters, digits, _ and -")
    values, transaction = _transaction(where, values)
    settings = read(where, values)
    stage, commands = f"timeline.{name}", f"timeline.{name}.commands"
    outputs = (f"{stage}.events", f"{stage}.parked", "replies")
    timeline = StageSpec(
        stage, commands, outputs, lambda: TimelineStage(settings, name, buffer_fixed=True),
        ticks=commands, partitions=settings.partitions, transaction=transaction,
    )  # fmt: skip
    if settings.buffer is None:
        return [timeline]
    topic = prefix + settings.buffer.source
    source = StageSpec(
        f"{stage}.in", settings.buffer.source, (commands, settings.buffer.target),
        lambda: SourceStage(settings, name, topic), ticks="",
    )  # fmt: skip
    return [timeline, source]


def _transaction(where: str, values: Any) -> tuple[Any, bool]:
    """The settings without `transaction`, which is the worker's, not the timeline's; and it."""
    if not isinstance(values, dict) or "transaction" not in values:
        return values, False
    rest = {name: value for name, value in values.items() if name != "transaction"}
    if not isinstance(values["transaction"], bool):
        raise ConfigError(f"{where}.transaction", "must be true or false")
    return rest, values["transaction"]


def check_targets(specs: Sequence[StageSpec]) -> None:
    """Raises ConfigError if a stage reads the target of a buffer with `transaction`.

    A stage reads what is not committed, too, and would take the end of a transaction, which has an offset, for lag.
    """
    by_name, inputs = {spec.name: spec for spec in specs}, {*BUILT_IN_INPUTS, *(spec.input for spec in specs)}
    for spec in specs:
        source = by_name.get(f"{spec.name}.in")
        if spec.transaction and source is not None and source.outputs[1] in inputs:
            field = f"{FIELD}.{spec.name.removeprefix('timeline.')}.transaction"
            raise ConfigError(field, f"cannot be, since a stage reads {source.outputs[1]}, the target")


def read(where: str, values: Any) -> Settings:
    """Settings of the timeline at `where`. Raises ConfigError that names the field."""
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise _named(where, error) from error
    if settings.buffer is not None:
        _check_buffer(f"{where}.buffer", settings.buffer)
    return settings


def _named(where: str, error: msgspec.ValidationError) -> ConfigError:
    """The error that names the field, which msgspec has in its text: `... - at `$.buffer.delay_ms``."""
    told = str(error)
    if isinstance(error.__cause__, ConfigError):
        return ConfigError(f"{where}.{error.__cause__.field}", told.partition(": ")[2])
    if found := WHERE.match(told):
        told, where = found[1], where + found[2]
    if found := NO_SUCH.match(told):
        where = f"{where}.{found[2]}"
        told = "there is no such setting" if found[1] == "contains unknown" else "must be given"
    return ConfigError(where, told)


def _check_buffer(where: str, buffer: Buffer) -> None:
    for field in ("source", "target"):
        if not TOPIC.fullmatch(getattr(buffer, field)):
            raise ConfigError(f"{where}.{field}", "must be the name of a topic, without the prefix")
    if buffer.source == buffer.target:
        raise ConfigError(f"{where}.target", "is the source")
    if buffer.delay_ms < 0:
        raise ConfigError(f"{where}.delay_ms", "must be 0 or more")
