"""The result for people and for machines."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from headrace.accounting import Line, account
from headrace.evidence import Mark
from headrace.table import Result, as_json, show
from tests.support.dry_run import Dry, script


@pytest.fixture(scope="module")
def result() -> Result:
    dry = Dry().publish(script())
    found = account(Mark(), dry.mark(), dry.found(), dry.published)
    return Result(found, [100, 200, 900], 2000, highest=200, capacity=200, used=0.876)


def shown(result: Result, *, terminal: bool = False) -> str:
    file = io.StringIO()
    show(result, Console(file=file, force_terminal=terminal, no_color=not terminal, width=110))
    return file.getvalue()


def test_a_good_run(result: Result):
    text = shown(result)
    assert result.good
    assert "FAIL" not in text
    assert "id_in_use 1" in text
    assert f"{result.account.into} = {result.account.out} + 6 + " in text
    assert "at most 200 of 200" in text


def test_the_window_is_over_both_jobs(result: Result):
    assert "over one job" in shown(result)
    assert "88%" in shown(result)
    both = replace(result, account=replace(result.account, archived=77))
    text = shown(both)
    assert "no second above the capacity, over both jobs together: at most 200 of 200" in text
    assert ("rows archived" in text, "77" in text) == (True, True)
    assert json.loads(as_json(both))["window"]["jobs"] == 2
    assert json.loads(as_json(both))["archived"] == 77


def test_there_is_no_colour_without_a_terminal(result: Result):
    assert "\x1b" not in shown(result)
    assert "\x1b" not in shown(replace(result, highest=201))
    assert "\x1b" in shown(result, terminal=True)


def test_a_window_above_the_capacity_fails(result: Result):
    over = replace(result, highest=201)
    assert not over.good
    assert "FAIL" in shown(over)


def test_what_has_not_drained_fails_and_is_named(result: Result):
    stuck = replace(result, moving=["writer: 7 batches are not written"])
    assert not stuck.good
    assert "not drained: writer: 7 batches" in shown(stuck)


def test_an_identity_that_does_not_hold_is_shown_with_both_sides(result: Result):
    lines = (*result.account.lines, Line("a = b", 41, 42))
    wrong = replace(result, account=replace(result.account, lines=lines))
    assert not wrong.good
    assert "a = b: 41 is not 42" in shown(wrong)


def test_a_sum_that_does_not_hold_fails(result: Result):
    wrong = replace(result, account=replace(result.account, out=result.account.out - 1))
    assert not wrong.good
    assert "FAIL" in shown(wrong)


def test_the_document_for_machines_has_the_same_numbers(result: Result):
    document = json.loads(as_json(result))
    total = document["sum"]
    assert document["good"] is True
    assert total["in"] == total["out"] + total["dead_letters"] + total["discarded"] + total["pending"]
    assert document["latency_ms"] == {"p50": 200, "p99": 900, "batches": 3, "beyond_timeout_ms": 2000}
    assert document["window"] == {"highest": 200, "capacity": 200, "holds": True, "used_share": 0.876, "jobs": 1}
    assert all(line["holds"] for line in document["identities"])
