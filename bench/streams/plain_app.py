"""Plain Faust as its manual has it: an agent, a table in RocksDB, an event at a time. The baseline that people know.

Run as `python plain_app.py BOOTSTRAP DATA_DIR INPUT OUTPUT`. It counts per entity and sends each record on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import faust
from faust.types import StreamT

NAME = "plain"


def app(bootstrap: str, data_dir: str, source: str, target: str) -> Any:
    """The application."""
    made = faust.App(
        NAME, broker=f"kafka://{bootstrap}", datadir=Path(data_dir), store="rocksdb://?driver=rocksdict",
        web_enabled=False, topic_partitions=4, broker_session_timeout=60.0, value_serializer="raw",
        consumer_auto_offset_reset="earliest", stream_wait_empty=False,
    )  # fmt: skip
    counts = made.Table("counts", default=int, partitions=4)
    incoming, outgoing = made.topic(source, partitions=4), made.topic(target, partitions=4)

    async def count(stream: StreamT[Any]) -> None:
        async for event in stream.events():
            entity, _, channel = event.headers["topic"].decode().partition("/m/")
            counts[entity] += 1
            headers = {"entity": entity.encode(), "channel": channel.encode()}
            await outgoing.send(key=event.key, value=event.value, headers=headers)

    made.agent(incoming)(count)
    return made


if __name__ == "__main__":
    built = app(*sys.argv[1:5])
    sys.argv[1:] = ["worker", "-l", "warn"]
    built.main()
