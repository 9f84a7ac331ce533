"""What the packages say of themselves: one version, one licence, one range of Pythons, types, and what they import."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = sorted(
    {at.parent for at in ROOT.glob("*/pyproject.toml")} | {at.parent for at in ROOT.glob("services/*/pyproject.toml")}
)
NAMES = {
    "headrace_capacity",
    "headrace_core",
    "headrace_schemas",
    "headrace_bridge",
    "headrace_streams",
    "headrace_api",
    "headrace",
    "headrace_spark",
}


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def packages(folder: Path) -> list[Path]:
    return [at.parent for at in folder.glob("src/*/__init__.py")]


def test_every_package_is_here_and_typed() -> None:
    found = [package for folder in FOLDERS for package in packages(folder)]
    assert {package.name for package in found} == NAMES
    assert all((package / "py.typed").is_file() for package in found)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_version_licence_and_pythons_are_those_of_the_workspace(folder: Path) -> None:
    own, whole = project(folder), WORKSPACE["project"]
    assert (own["version"], own["requires-python"]) == (whole["version"], whole["requires-python"])
    assert own["license"] == "Apache-2.0"
    assert own["description"]
    assert own["name"] in {name.partition("[")[0] for name in whole["dependencies"]}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_of_our_packages_a_package_imports_itself_and_what_it_depends_on(folder: Path) -> None:
    allowed = {name.partition("[")[0].replace("-", "_") for name in project(folder)["dependencies"]}
    allowed |= {package.name for package in packages(folder)}
    assert imported(folder) & NAMES <= allowed


def test_every_module_of_the_jobs_but_their_spark_layer_is_kept_from_spark() -> None:
    """spark-writer.md 1: the core must not import Spark, so that plain Python runs it."""
    contracts = WORKSPACE["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if "headrace_spark.plan" in one.get("source_modules", ())]
    assert {"headrace_spark.jobs", "pyspark"} <= set(contract["forbidden_modules"])
    whole = ROOT / "spark_jobs/src/headrace_spark"
    found = {at.stem for at in whole.iterdir() if at.suffix == ".py" or (at / "__init__.py").is_file()}
    spark = {"__init__", "jobs", "capacity"}
    assert set(contract["source_modules"]) == {f"headrace_spark.{name}" for name in found - spark}


def imported(folder: Path) -> set[str]:
    found: set[str] = set()
    for file in folder.glob("src/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names)
