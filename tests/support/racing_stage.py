"""The counting stage in a worker whose first fetch with records is overtaken by a rebalance.

What aiokafka and Faust do in that race: a fetch of the old generation gets its records after the seek of the new one.
Forced here by counting the generation up between the fetch and its return.
"""

from __future__ import annotations

from typing import Any

from headrace_streams.faust_internals import ChunkConsumer
from tests.support.counting_stage import CountingStage

_getmany = ChunkConsumer._getmany


async def _overtaken(self: Any, active_partitions: Any, timeout: float) -> Any:
    fetched = await _getmany(self, active_partitions, timeout)
    if fetched:
        ChunkConsumer._getmany = _getmany
        self.app.consumer_generation_id += 1
    return fetched


class RacingStage(CountingStage):
    """See the module."""

    def __init__(self) -> None:
        if not hasattr(ChunkConsumer, "overtaken"):
            ChunkConsumer.overtaken = True
            ChunkConsumer._getmany = _overtaken
