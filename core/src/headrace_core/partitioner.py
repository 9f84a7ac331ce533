"""Which partition a key belongs to: murmur2 as Java's default partitioner has it (Apache Kafka `Utils.murmur2`)."""

from __future__ import annotations

MASK = 0xFFFFFFFF
M = 0x5BD1E995
SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """32-bit murmur2 of `data`, unsigned."""
    h = (SEED ^ len(data)) & MASK
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * M & MASK
        k = (k ^ (k >> 24)) * M & MASK
        h = (h * M & MASK) ^ k
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * M & MASK
    h = (h ^ (h >> 13)) * M & MASK
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Partition of `key` among `partitions`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
