"""The settings of a built-in stage are checked at start, and the message names the field."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_core.batching.stage import BatchingStage
from headrace_core.errors import ConfigError
from headrace_streams.settings import StreamsSettings
from headrace_streams.stages import load


def settings(**batching: Any) -> StreamsSettings:
    return StreamsSettings(stages="batching", batching=batching)


def test_batching_stands_between_routed_and_batches() -> None:
    [spec] = load(settings(window=50))
    assert (spec.input, spec.outputs) == ("routed", ("batches", "dead-letter"))
    assert isinstance(spec.make(), BatchingStage)


@pytest.mark.parametrize("batching", [{"windw": 50}, {"window": "wide"}, {"window": -1}])
def test_a_wrong_setting_stops_the_start_and_is_named(batching: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(batching))):
        load(settings(**batching))
