"""The files of deploy/spark: they parse, say one thing everywhere, and agree with the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_spark import exits
from headrace_spark.jobs.process import CONNECTOR
from headrace_spark.jobs.supervise import STOPPED, again
from headrace_spark.settings import load
from tests.support.docker import REPOSITORY

FOLDER = REPOSITORY / "deploy/spark"
SCRIPTS = ("submit-standalone", "submit-yarn")
MANIFEST = [one for one in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()) if one]
KINDS = {
    "ServiceAccount": "v1", "Role": "rbac.authorization.k8s.io/v1", "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Secret": "v1", "ConfigMap": "v1", "PersistentVolumeClaim": "v1", "Service": "v1", "Job": "batch/v1",
}  # fmt: skip


def named(kind: str, name: str = "headrace-writer") -> dict[str, Any]:
    [found] = [one for one in MANIFEST if one["kind"] == kind and one["metadata"]["name"] == name]
    return dict(found)


POD = named("Job")["spec"]["template"]["spec"]
[DRIVER] = POD["containers"]


def options(command: list[str]) -> dict[str, str]:
    """What `--conf` says."""
    return dict(re.findall(r"--conf[= ](\S+?)=(\S+)", "\n".join(command)))


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in named("Secret")["stringData"]:
        monkeypatch.setenv(name, f"{name}/@")


@pytest.mark.usefixtures("secrets")
def test_the_job_file_works_with_the_secrets_of_the_manifest_and_holds_none() -> None:
    found = load(FOLDER / "writer.toml", {"spark.master": "yarn"})
    assert found.sink.count("HEADRACE_DATABASE_PASSWORD%2F%40") == 1
    assert found.stop_timeout_ms / 1000 < POD["terminationGracePeriodSeconds"]
    assert not re.search(r"(?i)password\s*=\s*\"?(?!\$\{)\w", (FOLDER / "writer.toml").read_text())


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_bash_and_leave_secrets_to_the_environment(name: str) -> None:
    script = FOLDER / name
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n", str(script)], check=True)
    text = script.read_text()
    assert script.stat().st_mode & 0o111
    assert f"--packages {CONNECTOR}" in text
    assert options([text])["spark.speculation"] == "false"
    assert "PASSWORD" not in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gives_the_whole_command_to_the_supervisor(name: str, tmp_path: Path) -> None:
    """Run with a Python that shows its arguments."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$PYSPARK_PYTHON"\n')
    python.chmod(0o755)
    told = {"MASTER": "spark://m:7077", "SPARK_HOME": "/spark", "HADOOP_CONF_DIR": "/hadoop",
            "ENVIRONMENT": f"{tmp_path}/environment.tar.gz", "UNPACKED": f"{tmp_path}/environment",
            "DRIVER_HOST": "driver", "PATH": "/usr/bin:/bin"}  # fmt: skip
    shown = subprocess.run([str(FOLDER / name)], env=told, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    assert shown[:4] == ["-m", "headrace_spark.jobs.supervise", "--", "/spark/bin/spark-submit"]
    assert shown[shown.index("--archives") + 1] == f"{tmp_path}/environment.tar.gz#environment"
    assert shown[-5:-2] == [str(FOLDER / "writer.py"), "--config", str(FOLDER / "writer.toml")]
    assert shown[-2] == "./environment/bin/python"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_names_what_it_misses(name: str) -> None:
    ran = subprocess.run(
        [str(FOLDER / name)], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert re.search(r": (MASTER|SPARK_HOME): \w+", ran.stderr)


def test_every_object_has_kind_version_and_a_name_of_its_own() -> None:
    seen = {(one["kind"], one["metadata"]["name"]) for one in MANIFEST}
    assert len(seen) == len(MANIFEST)
    assert {kind for kind, _ in seen} == KINDS.keys()
    for one in MANIFEST:
        assert one["apiVersion"] == KINDS[one["kind"]]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])


def test_the_config_map_is_the_job_file_and_the_application_of_this_folder() -> None:
    assert named("ConfigMap")["data"] == {name: (FOLDER / name).read_text() for name in ("writer.py", "writer.toml")}


def test_the_job_starts_the_driver_again_for_the_codes_of_the_supervisor_only() -> None:
    job = named("Job")["spec"]
    [codes] = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert codes["containerName"] == DRIVER["name"]
    everything = range(1, exits.SINK_DOWN + 1)
    assert set(codes["values"]) == {code for code in everything if not again(code)}
    assert POD["restartPolicy"] == "Never", "podFailurePolicy needs it"
    command = DRIVER["command"]
    assert command[2 : command.index("--")] == ["headrace_spark.jobs.supervise", "--once"], "or a stopped pod is done"
    assert STOPPED not in {exits.DONE, *codes["values"]}


@pytest.mark.usefixtures("secrets")
def test_a_store_that_is_down_is_waited_for_and_no_reason_to_kill_the_driver() -> None:
    """`/healthz` fails meanwhile, as there is no progress; after `sink_down_max_ms` the job ends by itself."""
    probe = DRIVER["livenessProbe"]
    assert probe["httpGet"] == {"path": "/healthz", "port": "metrics"}
    waits_ms = load(FOLDER / "writer.toml", {"spark.master": "k8s://x"}).sink_down_max_ms
    assert probe["periodSeconds"] * probe["failureThreshold"] * 1000 > waits_ms


def test_what_the_pod_refers_to_is_there() -> None:
    assert POD["serviceAccountName"] == named("ServiceAccount")["metadata"]["name"]
    [subject] = named("RoleBinding")["subjects"]
    assert subject["name"] == POD["serviceAccountName"]
    assert named("RoleBinding")["roleRef"]["name"] == named("Role")["metadata"]["name"]
    claims = {one["metadata"]["name"] for one in MANIFEST if one["kind"] == "PersistentVolumeClaim"}
    volumes = {one["name"]: one for one in POD["volumes"]}
    used = {one["persistentVolumeClaim"]["claimName"] for one in volumes.values() if "persistentVolumeClaim" in one}
    assert used == claims
    for container in [DRIVER, *POD["initContainers"]]:
        assert {one["name"] for one in container["volumeMounts"]} <= volumes.keys()
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    [reference] = DRIVER["envFrom"]
    assert reference["secretRef"]["name"] == named("Secret")["metadata"]["name"]
    assert (
        named("Service")["spec"]["selector"].items() <= named("Job")["spec"]["template"]["metadata"]["labels"].items()
    )


@pytest.mark.usefixtures("secrets")
def test_ports_paths_and_settings_of_the_driver_agree() -> None:
    job = load(FOLDER / "writer.toml", {"spark.master": "k8s://x"})
    conf = options(DRIVER["command"])
    ports = {one["name"]: one["port"] for one in named("Service")["spec"]["ports"]}
    assert ports == {one["name"]: one["containerPort"] for one in DRIVER["ports"]}
    assert ports == {"driver": int(conf["spark.driver.port"]), "blocks": int(conf["spark.driver.blockManager.port"]),
                     "metrics": job.metrics_port}  # fmt: skip
    assert named("Service")["spec"]["publishNotReadyAddresses"] is True, (
        "a pod with a startup probe is not ready before"
    )
    assert job.metrics_host == "0.0.0.0"
    assert conf["spark.driver.host"].startswith(f"{named('Service')['metadata']['name']}.")
    mounts = {one["mountPath"] for one in DRIVER["volumeMounts"]}
    assert str(Path(job.checkpoint).parent) in mounts
    assert f"--packages={CONNECTOR}" in DRIVER["command"]
    version = CONNECTOR.rpartition(":")[2]
    assert {DRIVER["image"], conf["spark.kubernetes.container.image"]} == {f"apache/spark:{version}-python3"}
    assert conf["spark.speculation"] == "false"
    assert not [name for name in conf if "password" in name.lower()]
    defined = {one["name"] for one in DRIVER["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(DRIVER["command"]))) <= defined
