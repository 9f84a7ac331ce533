"""Several processes insert rows into one PostgreSQL and together never send more than 200 rows in any second.

Start it as often as you like, side by side; the processes share the capacity by themselves:

    python paced_inserts.py postgresql://user@host/database 1000

No Kafka and no Spark: a lease store (here in the same database), a resource, a batcher, and your own callback.
"""

from __future__ import annotations

import sys
import threading

import psycopg

from headrace_capacity.postgres import PostgresStore
from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.errors import BatcherError
from headrace_core.capacity.operation import Batch, Operation, Watcher
from headrace_core.capacity.resources import SharedResource

ROWS_PER_S, ROWS_A_REQUEST, ATTEMPTS = 200, 10, 5


class Writer:
    """Inserts a request of rows for each operation that was let through; one that fails is charged, and tried again."""

    def __init__(self, url: str, requests: int) -> None:
        self.url, self.left = url, requests
        self.batcher: Batcher | None = None
        self.guard, self.done = threading.Lock(), threading.Event()
        self.connections = threading.local()

    def insert(self, batch: Batch) -> None:
        """The callback: runs in a thread of the batcher, once for each batch that may be sent now."""
        own = getattr(self.connections, "own", None)
        if own is None or own.closed:
            own = self.connections.own = psycopg.connect(self.url, autocommit=True)
        for operation in batch:  # one: these operations are not batchable
            with own.transaction(), own.cursor() as cursor:
                cursor.executemany("INSERT INTO paced (value) VALUES (%s)", [(value,) for value in operation.payload])
        self.finished(len(batch))

    def failed(self, batch: Batch, error: BaseException) -> None:
        """`on_error`: operations are not queued again by themselves."""
        print(f"{batch[0].payload}: {error}", file=sys.stderr)
        assert self.batcher is not None
        for operation in batch:
            try:
                self.batcher.enqueue(operation)
            except BatcherError as refused:  # TooManyAttempts: here a dead letter would be written
                print(f"{operation.payload} given up: {refused}", file=sys.stderr)
                self.finished(1)

    def finished(self, requests: int) -> None:
        with self.guard:
            self.left -= requests
            if self.left == 0:
                self.done.set()


def main(url: str, rows: int) -> None:
    """Insert the numbers 0 to `rows`."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('paced'))")  # of two that make it at once one fails
        connection.execute("CREATE TABLE IF NOT EXISTS paced (value int, sent timestamptz DEFAULT clock_timestamp())")
    requests = [range(first, min(first + ROWS_A_REQUEST, rows)) for first in range(0, rows, ROWS_A_REQUEST)]
    writer = Writer(url, len(requests))
    watcher = Watcher(writer.insert, max_attempts=ATTEMPTS, on_error=writer.failed)
    # 20 partitions of 10 rows/s, dealt out among the processes that want them now
    store = PostgresStore(url, call_timeout_ms=30_000)  # so long the start waits for a slow database
    resource = SharedResource(store, name="paced", shared_capacity=ROWS_PER_S, factor=ROWS_A_REQUEST)
    batcher = writer.batcher = Batcher(resource, flush_interval_ms=25)
    batcher.start()
    for request in requests:
        batcher.enqueue(Operation(watcher, len(request), request))  # waits while the buffer is full
    writer.done.wait()
    batcher.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
