"""What a partition is worth, in units per second (capacity.md 12, 15).

With a factor the shared capacity is cut into pieces of one factor each, the last one is worth the remainder. With
several dimensions it is cut into a fixed number of pieces, evenly. The worths always add up to the shared capacity.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_core.capacity.protocol import Capacity, ResourceConfig, as_capacity


def factor_worth(shared: int, factor: int, partition: int) -> int:
    """`max(0, min(factor, shared - i x factor))`."""
    return max(0, min(factor, shared - partition * factor))


def even_worth(shared: int, partitions: int, partition: int) -> int:
    """`floor((i+1) S / P) - floor(i S / P)`; 0 outside `0 <= i < P`."""
    if not 0 <= partition < partitions:
        return 0
    return (partition + 1) * shared // partitions - partition * shared // partitions


def worth_of(config: ResourceConfig, shared: Mapping[str, int], partition: int) -> Capacity:
    """Worth of a partition while `shared` is effective."""
    if config.partitions is None:
        return factor_worth(shared[""], config.factor, partition)
    return as_capacity({name: even_worth(units, config.partitions, partition) for name, units in shared.items()})


def worths(shared: Capacity, *, factor: int = 1, partitions: int | None = None) -> list[Capacity]:
    """The worth of each partition, in order of index."""
    config = ResourceConfig(resource="", shared_capacity=shared, factor=factor, partitions=partitions)
    amounts = shared if isinstance(shared, dict) else {"": shared}
    return [worth_of(config, amounts, index) for index in range(config.count(amounts))]
