"""Records with header names that are not UTF-8, as clients in C can write them."""

from __future__ import annotations

import struct
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

PLACEHOLDER, ODD = b"PLACEHOLDER", b"\xff\xfe\x00-odd\xc3(\x80z"
NAME = PLACEHOLDER.decode()
"""A header of this name gets the name `ODD`."""
assert len(PLACEHOLDER) == len(ODD)
CRC_AT, ATTRIBUTES_AT = 17, 21


def spoiled(batch: bytes | bytearray | memoryview) -> bytearray:
    """An uncompressed record batch with the odd names and the checksum that belongs to them."""
    made = bytearray(bytes(batch).replace(PLACEHOLDER, ODD))
    struct.pack_into(">I", made, CRC_AT, calc_crc32c(bytes(made[ATTRIBUTES_AT:])))
    return made


def batch(first: int, rows: list[tuple[bytes | None, bytes, list[tuple[str, bytes]]]]) -> bytes:
    """A batch from the offset `first` on, of keys, values and headers."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10_000_000)
    for at, (key, value, headers) in enumerate(rows):
        builder.append(at, 1000 + at, key, value, headers)
    made = spoiled(builder.build())
    made[:8] = struct.pack(">q", first)
    return bytes(made)


async def produce(
    kafka: str, topic: str, partition: int, rows: list[tuple[bytes | None, bytes, list[tuple[str, bytes]]]]
) -> None:  # fmt: skip
    """Write the rows as one batch."""
    producer = AIOKafkaProducer(bootstrap_servers=kafka, acks="all")
    await producer.start()
    try:
        builder: Any = producer.create_batch()
        for key, value, headers in rows:
            builder.append(timestamp=1000, key=key, value=value, headers=headers)
        build = builder._builder.build

        class Spoiling:
            """The builder, whose last word is ours."""

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

            def build(self) -> bytearray:
                return spoiled(build())

        inner = builder._builder
        builder._builder = Spoiling()
        builder.close()
        await (await producer.send_batch(builder, topic, partition=partition))
    finally:
        await producer.stop()
