"""The counting stage in a worker whose fetcher ends after the first records, as it does by an unexpected error.

aiokafka logs such an error and ends the task; `getmany` then gives nothing, for ever, and the lag stays what it was.
"""

from __future__ import annotations

from typing import Any

from headrace_streams.faust_internals import ChunkConsumer
from tests.support.counting_stage import CountingStage

_getmany = ChunkConsumer._getmany


async def _last_one(self: Any, active_partitions: Any, timeout: float) -> Any:
    fetched = await _getmany(self, active_partitions, timeout)
    if fetched:
        fetcher = self._thread._ensure_consumer()._fetcher
        self._thread.thread_loop.call_soon_threadsafe(fetcher._fetch_task.cancel)
    return fetched


class DeafStage(CountingStage):
    """See the module."""

    def __init__(self) -> None:
        ChunkConsumer._getmany = _last_one
