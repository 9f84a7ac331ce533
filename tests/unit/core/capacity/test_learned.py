"""The cost of a kind is the mean of its charges, rounded up, and its base before the first."""

from __future__ import annotations

from headrace_core.capacity.learned import MEMORY, LearnedCost


def cost() -> LearnedCost:
    return LearnedCost(base=len, kind=lambda payload: payload[0])


def test_a_kind_costs_its_base_until_something_is_charged_for_it() -> None:
    model = cost()
    model.learn("a", 50)
    assert (model("bbb"), model("aaa")) == (3, 50)


def test_the_mean_is_rounded_up() -> None:
    model = cost()
    for charge in (1, 2, 2):
        model.learn("a", charge)
    assert model("a") == 2


def test_the_past_fades() -> None:
    model = cost()
    for charge in [1000] * MEMORY + [1] * 20 * MEMORY:
        model.learn("a", charge)
    assert model("a") <= 2
