"""Which stages there are: the one place that names engines, imports them when asked, and hands them their settings.

A name of the settings is a built-in (`registration`, `batching`) or `module:Class`, a class without arguments whose
attributes `input` (default `raw`) and `outputs` (default `routed`) name its topics. Timelines have settings of their
own (`timelines.py`) and need not be named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_type_hints

import msgspec

from headrace_core.errors import ConfigError
from headrace_core.stage import Stage
from headrace_streams.settings import StreamsSettings


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage to run: `make` builds one instance per partition, so that caches are never shared.

    `ticks` is the topic that ticks go to, `raw` for all stages that roots pass through; empty for a stage that takes no
    time from its input. `partitions`: of an input that has to be made, if not the worker's setting.
    """

    name: str
    input: str
    outputs: tuple[str, ...]
    make: Callable[[], Stage]
    ticks: str = "raw"
    partitions: int | None = None
    transaction: bool = False
    """Outputs, changelog and replies of a chunk as one Kafka transaction (`atomic.py`)."""

    @property
    def rooted(self) -> bool:
        """Whether roots pass through it, so that its partitions are those of `raw`."""
        return self.ticks == "raw"

    @property
    def changelog(self) -> str:
        """Logical name of the changelog topic."""
        return f"{self.name}.changelog"


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Where an engine is, and between which topics it stands (`architecture.md`, Flow)."""

    module: str
    stage: str
    input: str
    outputs: tuple[str, ...]


BUILT_IN = {
    "registration": BuiltIn(
        "headrace_core.registration.stage", "RegistrationStage", "raw",
        ("routed", "entities", "registrations", "outbound", "replies", "dead-letter"),
    ),
    "batching": BuiltIn(
        "headrace_core.batching.stage", "BatchingStage", "routed", ("batches", "dead-letter")
    ),
}  # fmt: skip


def load(settings: StreamsSettings) -> list[StageSpec]:
    """The stages of the settings, timelines last.

    Raises ConfigError if one is unknown, its settings are wrong, two read the same topic, or there is none.
    """
    timelines = _timelines(settings)
    own = {spec.name for spec in timelines}
    specs = [_load_one(name, settings) for name in settings.stage_names if name not in own] + timelines
    if not specs:
        raise ConfigError("stages", "names no stage")
    names = [spec.name for spec in specs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError("stages", f"two with the stage {twice!r}")
    readers: dict[str, StageSpec] = {}
    for spec in specs:
        if (other := readers.setdefault(spec.input, spec)) is not spec:
            raise ConfigError("timelines" if spec in timelines else "stages",
                              f"{spec.name} reads {spec.input}, which {other.name} reads")  # fmt: skip
    if timelines:
        import_module("headrace_streams.timelines").check_targets(specs)
    return specs


def _timelines(settings: StreamsSettings) -> list[StageSpec]:
    if not settings.timelines:
        return []
    found: list[StageSpec] = import_module("headrace_streams.timelines").load(settings.timelines, settings.prefix)
    return found


def _load_one(name: str, settings: StreamsSettings) -> StageSpec:
    if ":" in name:
        return _load_class(name)
    if name not in BUILT_IN:
        raise ConfigError("stages", f"unknown stage {name!r}")
    built_in = BUILT_IN[name]
    values = {"batching": settings.batching, "registration": {"roots": settings.roots, **settings.registration}}[name]
    module = import_module(built_in.module)
    stage_class: Callable[[Any], Stage] = getattr(module, built_in.stage)
    config = _config(name, _config_class(stage_class), values)
    return StageSpec(name, built_in.input, built_in.outputs, lambda: stage_class(config))


def _config_class(stage_class: Any) -> Any:
    """The type of the one argument that a built-in stage is made from."""
    hints = get_type_hints(stage_class.__init__)
    return next(hint for argument, hint in hints.items() if argument != "return")


def _config(name: str, config_class: Any, values: Mapping[str, Any]) -> Any:
    unknown = sorted(set(values) - set(get_type_hints(config_class)))
    if unknown:
        raise ConfigError(f"{name}.{unknown[0]}", "there is no such setting")
    try:
        return msgspec.convert(values, config_class)
    except msgspec.ValidationError as error:
        raise ConfigError(name, str(error)) from error


def _load_class(path: str) -> StageSpec:
    module, _, attribute = path.partition(":")
    try:
        stage_class: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError("stages", f"{path!r}: {error}") from error
    first: Stage = stage_class()
    outputs = tuple(getattr(stage_class, "outputs", ("routed",)))
    return StageSpec(first.name, getattr(stage_class, "input", "raw"), outputs, stage_class)
