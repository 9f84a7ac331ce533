"""Spark's listener in the driver (spark-writer.md 9): each micro-batch's progress goes to the metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from headrace_spark.observed import Observed, observed


def listen(spark: Any, put: Callable[[Observed], None], idle: Callable[[], None]) -> None:
    """From now on `put` gets what Spark tells of each micro-batch that had input; `idle` is called when Spark has
    looked for input and found none, every 10 s or with each trigger, whichever is longer."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None:
            """The job logs this itself."""

        def onQueryProgress(self, event: Any) -> None:
            put(observed(json.loads(event.progress.json), time.time()))

        def onQueryIdle(self, event: Any) -> None:  # noqa: ARG002
            idle()

        def onQueryTerminated(self, event: Any) -> None:
            """The job logs this itself."""

    spark.streams.addListener(Listener())
