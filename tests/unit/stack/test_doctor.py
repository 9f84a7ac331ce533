"""The doctor: good, bad, or only told."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from headrace import doctor, evidence, leasing
from headrace.doctor import Finding
from headrace.evidence import Found, Mark
from headrace.java import NoJava
from headrace_capacity.stores import open_store
from headrace_core.capacity.errors import LeaseStoreUnavailable
from headrace_core.capacity.protocol import LeaseRequest
from headrace_core.capacity.resources import SharedResource
from tests.support.dry_run import Dry, script
from tests.unit.stack.test_settling import AT


@pytest.fixture(scope="module")
def dry() -> Dry:
    return Dry().publish(script())


def accounts(
    monkeypatch: pytest.MonkeyPatch, marks: list[Mark], found: Found, *, quiet: bool = True, trimmed: bool = False
) -> dict[str, Finding]:
    """The findings of `doctor.accounts` over what the topics and the gauges say."""
    monkeypatch.setattr(evidence, "mark", lambda _: marks.pop(0))
    monkeypatch.setattr(evidence, "read", lambda *_: found)
    monkeypatch.setattr(doctor, "_quiet", lambda _: quiet)
    monkeypatch.setattr(doctor, "_trimmed", lambda _: trimmed)
    return {finding.name: finding for finding in doctor.accounts(AT)}


def test_without_a_stack_only_versions_are_judged(tmp_path: Path):
    findings = list(doctor.examine(tmp_path))
    assert {finding.group for finding in findings} == {"versions", "stack"}
    assert findings[-1].good is None
    assert next(f for f in findings if f.name == "Python").good


def test_a_damaged_description_of_the_stack_is_a_finding(tmp_path: Path):
    (tmp_path / "stack.json").write_text("{")
    (found,) = [finding for finding in doctor.examine(tmp_path) if finding.group == "stack"]
    assert found.good is False
    assert "stack.json cannot be read" in found.words


def test_a_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def none() -> str:
        raise NoJava("Java 17, 21 or 25 is needed: install one")

    monkeypatch.setattr(doctor, "java", none)
    found = next(finding for finding in doctor.versions() if finding.name == "Java")
    assert found.good is False
    assert "install one" in found.words


def test_the_capacity_is_told_as_its_coordinator_tells_it(tmp_path: Path):
    coordinator = leasing.coordinate(tmp_path, 0)
    at = replace(AT, lease_store=coordinator.address, lease_token_file=leasing.token_file(tmp_path))
    try:
        (unknown,) = doctor.leased(at)
        store = open_store(coordinator.address, token=at.lease_token_file.read_text())
        resource = SharedResource(store, name=at.resource, shared_capacity=200, factor=10)
        resource.start()
        store.sync(LeaseRequest(resource=at.resource, owner="a", seq=1, want=5), 5_000)
        (known,) = doctor.leased(at)
        store.close()
    finally:
        coordinator.stop()
    assert (unknown.good, unknown.words) == (None, "no job has asked for it yet")
    assert known.good is True
    assert known.words.startswith("200 units/s, ")
    assert at.lease_token_file.stat().st_mode & 0o077 == 0
    with pytest.raises(LeaseStoreUnavailable):
        list(doctor.leased(at))


def test_a_service_that_does_not_answer_is_bad(tmp_path: Path):
    """A stack was up, and nothing of it is there any more."""
    (tmp_path / "stack.json").parent.mkdir(exist_ok=True)
    replace(AT, kafka="127.0.0.1:1", bridge_url="http://127.0.0.1:1").save(tmp_path / "stack.json")
    assert {finding.good for finding in doctor.ports(replace(AT, kafka="127.0.0.1:1"))} == {False}


def test_accounts_from_the_first_record_on(monkeypatch: pytest.MonkeyPatch, dry: Dry):
    findings = accounts(monkeypatch, [dry.mark(), dry.mark()], dry.found())
    assert all(finding.good for finding in findings.values())
    assert findings["sum"].words.startswith(f"in {len(script())} = out ")


def test_accounts_that_do_not_add_up_are_bad(monkeypatch: pytest.MonkeyPatch, dry: Dry):
    wrong = replace(dry.mark(), rows=1)
    findings = accounts(monkeypatch, [wrong, wrong], dry.found())
    assert findings["writer: rows in the table = inserted"].good is False


@pytest.mark.parametrize("quiet", [True, False])
def test_what_moves_is_told_and_not_judged(monkeypatch: pytest.MonkeyPatch, dry: Dry, quiet: bool):
    before = replace(dry.mark(), rows=1)
    after = replace(before, totals={"records": 1}) if quiet else before
    findings = accounts(monkeypatch, [before, after], dry.found(), quiet=quiet)
    assert {finding.good for finding in findings.values()} == {None}
    assert "in motion" in findings["sum"].words


def test_topics_without_their_first_records_cannot_be_accounted_for(monkeypatch: pytest.MonkeyPatch, dry: Dry):
    findings = accounts(monkeypatch, [], dry.found(), trimmed=True)
    assert [finding.good for finding in findings.values()] == [None]


def test_the_table_has_no_colour_without_a_terminal():
    file = io.StringIO()
    findings = [Finding("a", "one", "fine"), Finding("a", "two", "wrong", False), Finding("b", "three", "told", None)]
    doctor.show(findings, Console(file=file, width=120))
    lines = file.getvalue().splitlines()
    assert "\x1b" not in file.getvalue()
    assert [line.split()[:2] for line in lines] == [["a", "ok"], ["BAD", "two"], ["b", "-"]]
