"""The commented job file: it works as it is, every setting is in it, and it never replaces a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headrace_spark.jobs.init import TEMPLATE, main
from headrace_spark.settings import Settings, load


def test_the_job_file_works_and_names_every_setting(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    assert main(["init", str(file)]) == 0
    assert load(file).job == "writer"
    for field in msgspec.structs.fields(Settings):
        assert f"\n{field.name} = " in TEMPLATE or f"\n# {field.name} = " in TEMPLATE or f"# [{field.name}]" in TEMPLATE


def test_the_defaults_that_it_shows_are_the_defaults() -> None:
    """Those that depend on nothing else."""
    shown = msgspec.toml.decode(
        "\n".join(line.removeprefix("# ") for line in TEMPLATE.splitlines()[1:] if " = " in line and '"."' not in line),
        type=dict,
    )
    for field in msgspec.structs.fields(Settings):
        told = field.name in shown and not field.required and f"\n# {field.name} = " in TEMPLATE
        if told and field.name not in ("topics", "metrics_port", "stage_cost", "key", "headers", "headroom"):
            assert shown[field.name] == field.default, field.name


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("mine")
    assert main(["init", str(file)]) == 2
    assert file.read_text() == "mine"
