"""What the worked examples do not show: kinds of input, errors, a large packing."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_core.errors import ConfigError
from headrace_core.packing.packer import UNTIMED, Open, as_times, pack, pack_rows
from headrace_core.packing.settings import PackingSettings


def test_times_may_be_a_list_with_none_an_integer_array_or_a_float_array_with_nan() -> None:
    assert as_times([None, 5, -3]).tolist() == [UNTIMED, 5, -3]
    assert as_times(np.array([1, 2], np.int32)).tolist() == [1, 2]
    assert as_times(np.array([np.nan, 2.0])).tolist() == [UNTIMED, 2]
    assert as_times([float("nan"), 7]).tolist() == [UNTIMED, 7]


def test_a_time_below_zero_comes_after_no_time() -> None:
    assert pack(["a$m", "a$m", "a$m"], [0, -5, None], 1).tolist() == [2, 1, 0]


def test_the_table_decides_what_is_one_group() -> None:
    ids, times = ["x", "a$m", "y"], [0, 0, 0]
    assert pack(ids, times, 2).tolist() == [0, 1, 0]
    assert pack(ids, times, 2, {"x": "a"}).tolist() == [0, 0, 1]


def test_a_maximum_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="max"):
        pack(["a$m"], [0], 0)


@pytest.mark.parametrize(
    "wrong",
    [{"max": 0}, {"lateness_ms": -1}, {"linger_ms": -1}, {"mode": "x"}, {"on_reject": "x"}, {"max_send_ms": -1}],
)
def test_a_wrong_setting_names_its_key(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        PackingSettings(**wrong)
    assert raised.value.field == next(iter(wrong))


def test_nothing_to_pack_leaves_a_carried_open_batch_open_until_the_flush() -> None:
    none, held = np.empty(0, np.int64), Open(2, np.array([0], np.int64))
    kept = pack_rows(none, none, 3, carried=held, flush=False)
    sent = pack_rows(none, none, 3, carried=held)
    assert (kept.sizes.tolist(), kept.open) == ([2], True)
    assert (sent.sizes.tolist(), sent.open) == ([2], False)


def test_groups_of_different_sizes_are_placed_first_fit_decreasing() -> None:
    """Sizes 5, 4, 3, 3, 2, 1 into bins of 6: 5+1, 4+2, 3+3."""
    sizes = {"a": 3, "b": 1, "c": 5, "d": 3, "e": 2, "f": 4}
    ids = [f"{name}$m" for name, size in sizes.items() for _ in range(size)]
    numbers = pack(ids, [0] * len(ids), 6)
    held = {name: int(numbers[ids.index(f"{name}$m")]) for name in sizes}
    assert held == {"c": 0, "b": 0, "f": 1, "e": 1, "a": 2, "d": 2}


def test_a_large_packing_fills_every_batch() -> None:
    ids = [f"s{s}$m" for _ in range(10) for s in range(2_000)]
    numbers = pack(ids, np.repeat(np.arange(10), 2_000), 500)
    assert np.bincount(numbers).tolist() == [500] * 40
