"""One micro-batch into Delta Lake: the direct path, where the sink knows which request is the last (`delta.py`)."""

from __future__ import annotations

from headrace_spark.faults import from_environment
from headrace_spark.plan import Plan
from headrace_spark.sinks.delta import DeltaSink
from headrace_spark.sinks.port import Batch, Outcome
from headrace_spark.writing import BatchWriter


class DeltaWriter(BatchWriter):
    """A `BatchWriter` whose sink is a `DeltaSink`."""

    def _send(self, batch: Batch, planned: Plan) -> Outcome:
        assert isinstance(self._sink, DeltaSink)
        self._sink.plan(planned.requests)
        outcome = super()._send(batch, planned)
        from_environment().passed("sent", batch.batch_id)
        return outcome
