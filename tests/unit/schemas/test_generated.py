"""What is generated is checked in as it would be generated, and the AsyncAPI document holds together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from headrace_core.batching.stage import BatchingStage
from headrace_core.registration.stage import RegistrationStage
from headrace_core.timeline.source import SourceStage
from headrace_core.timeline.stage import TimelineStage
from headrace_schemas import NAMES, examples
from headrace_schemas.generate import generated, main
from headrace_schemas.topics import FAMILIES, TOPICS, topic

DOCUMENT: dict[str, Any] = json.loads(Path("schemas/asyncapi.json").read_text("utf-8"))
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]


def test_every_generated_file_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_a_file_that_is_not_up_to_date_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    assert main(["--check"]) == 0
    stale = next(iter(generated()))
    stale.write_text("old", "utf-8")
    assert main(["--check"]) == 1
    assert str(stale) in capsys.readouterr().err


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for below in value.values():
            yield from references(below)
    elif isinstance(value, list):
        for below in value:
            yield from references(below)


def resolve(reference: str) -> Any:
    found: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found


def test_every_reference_points_into_the_document_itself() -> None:
    found = set(references(DOCUMENT))
    assert len(found) > 40
    for reference in found:
        assert reference.startswith("#/")
        assert isinstance(resolve(reference), dict)


def test_every_topic_is_a_channel_and_every_message_of_it_is_described_once() -> None:
    assert list(DOCUMENT["channels"]) == [described.name for described in TOPICS]
    used = [m["$ref"] for channel in DOCUMENT["channels"].values() for m in channel["messages"].values()]
    assert sorted(used) == sorted(f"#/components/messages/{name}" for name in MESSAGES)
    for name, channel in DOCUMENT["channels"].items():
        assert channel["address"] == f"headrace.{name}"
        assert channel["bindings"]["kafka"]["topicConfiguration"]["cleanup.policy"] == [topic(name).retention]


def in_document(described: Any) -> dict[str, Any]:
    """A schema whose pointers find the document's components."""
    return {"allOf": [described], "components": DOCUMENT["components"]}


@pytest.mark.parametrize("draft", [Draft7Validator, Draft202012Validator], ids=["draft7", "2020-12"])
@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_has_examples_that_its_headers_and_payload_take(name: str, draft: Any) -> None:
    message = MESSAGES[name]
    assert message["examples"]
    assert message["bindings"]["kafka"]["key"]
    for example in message["examples"]:
        draft(in_document(message["headers"])).validate(example["headers"])
        draft(in_document(message["payload"])).validate(example["payload"])


@pytest.mark.parametrize("name", NAMES)
def test_an_embedded_schema_says_the_same_in_the_draft_of_asyncapi(name: str) -> None:
    embedded = Draft7Validator(in_document({"$ref": f"#/components/schemas/{name}"}))
    assert all(embedded.is_valid(document) for document in examples(name)["valid"])
    assert not any(embedded.is_valid(document) for document in examples(name)["invalid"])


@pytest.mark.parametrize(
    ("name", "primary"),
    [("registration", RegistrationStage.primary), ("batching", BatchingStage.primary),
     ("timeline", TimelineStage.primary), ("timeline.in", SourceStage.primary)],
)  # fmt: skip
def test_every_family_of_a_changelog_is_described(name: str, primary: bytes) -> None:
    assert set(primary) == {ord(prefix[0]) for prefix in FAMILIES[name]}
