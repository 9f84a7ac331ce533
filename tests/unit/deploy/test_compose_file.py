"""docker-compose.yml, the Dockerfile and the files they mount agree with each other and with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.kafka import MESSAGE_BYTES
from headrace_api.settings import Settings as ApiSettings
from headrace_bridge.settings import BridgeSettings
from headrace_core.state import MemoryState
from headrace_spark.database import is_postgres
from headrace_spark.settings import load
from headrace_streams import stages
from headrace_streams.settings import StreamsSettings
from headrace_streams.topics import wanted
from tests.support.docker import COMPOSE_FILE, REPOSITORY, services

SERVICES = services()
OURS = {"streams", "bridge", "api", "spark", "archive", "publisher"}
WRITER, ARCHIVE = (REPOSITORY / f"deploy/compose/{name}.toml" for name in ("writer", "archive"))


def targets() -> dict[str, str]:
    """The Dockerfile's stages: name to text."""
    parts = re.split(r"^FROM \S+ AS (\S+)$", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def default(value: Any) -> str:
    """A value as compose gives it when no variable is set."""
    return re.sub(r"\$\{\w+:-(.*)\}", r"\1", str(value))


@pytest.fixture(params=sorted(SERVICES))
def service(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = SERVICES[request.param]
    return found


def test_the_services_are_those_of_the_architecture() -> None:
    assert set(SERVICES) == OURS | {"kafka", "mosquitto", "postgres"}
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"publisher": ["demo"], "archive": ["two-writers"]}


def test_every_service_is_checked_bounded_and_stops_in_time(service: dict[str, Any]) -> None:
    assert service["healthcheck"]["test"][0] == "CMD"
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert int(service["stop_grace_period"].removesuffix("s")) >= 15
    assert service["restart"] in ("unless-stopped", "no")


def test_no_service_runs_as_root(service: dict[str, Any]) -> None:
    if "build" in service:
        user = re.findall(r"^USER (\S+)$", targets()[service["build"]["target"]], flags=re.MULTILINE)
        assert user == ["headrace"]
        assert "user" not in service
    else:
        assert service["user"] not in ("root", "0")


def test_ports_are_bound_to_the_loopback_address_and_can_be_chosen(service: dict[str, Any]) -> None:
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{HEADRACE_[A-Z]+_PORT:-(\d+)\}:\1", port)


def test_the_start_order_is_by_health(service: dict[str, Any]) -> None:
    for name, wait in service.get("depends_on", {}).items():
        assert name in SERVICES
        assert wait == {"condition": "service_healthy"}


def test_what_a_service_keeps_is_in_a_named_volume_and_mounted_files_are_there(service: dict[str, Any]) -> None:
    named = yaml.safe_load(COMPOSE_FILE.read_text())["volumes"]
    for volume in service.get("volumes", []):
        source, _, where = volume.partition(":")
        if source.startswith("."):
            assert (REPOSITORY / source).exists()
            assert where.endswith(":ro")
        else:
            assert source in named


def test_kafka_takes_messages_as_large_as_the_local_stacks() -> None:
    properties = kafka_properties()
    assert int(properties["message.max.bytes"]) == MESSAGE_BYTES
    assert int(properties["replica.fetch.max.bytes"]) == MESSAGE_BYTES
    assert int(properties["socket.request.max.bytes"]) > MESSAGE_BYTES
    assert properties["auto.create.topics.enable"] == "false"


def test_kafka_listens_where_it_says_it_does() -> None:
    properties, service = kafka_properties(), SERVICES["kafka"]
    advertised = default(service["environment"]["ADVERTISED_LISTENERS"])
    assert advertised == properties["advertised.listeners"]
    ports = {name: port for name, _, port in re.findall(r"(\w+)://([^:,]*):(\d+)", properties["listeners"])}
    assert {name: port for name, _, port in re.findall(r"(\w+)://([^:,]*):(\d+)", advertised)}.items() <= ports.items()
    assert f"/dev/tcp/localhost/{ports['INTERNAL']}" in service["healthcheck"]["test"][-1]


def kafka_properties() -> dict[str, str]:
    lines = (REPOSITORY / "deploy/compose/kafka/server.properties").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def test_all_meet_at_the_same_addresses_with_the_same_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OURS:
        for key, value in SERVICES[name].get("environment", {}).items():
            monkeypatch.setenv(key, default(value))
    bridge, streams, api, writer = BridgeSettings(), StreamsSettings(), ApiSettings(), load(WRITER)
    kafka = re.search(r"INTERNAL://(kafka:\d+)", SERVICES["kafka"]["environment"]["ADVERTISED_LISTENERS"])
    assert kafka is not None
    assert {bridge.kafka, streams.kafka, api.kafka, writer.kafka} == {kafka[1]}
    assert len({bridge.prefix, streams.prefix, api.prefix, writer.prefix}) == 1
    assert streams.roots == api.roots
    assert streams.registration == api.registration
    assert {f"{root}/#" for root in streams.roots} == set(bridge.subscriptions)
    specs = stages.load(streams)
    for spec in specs:
        assert spec.make().gauges(MemoryState()) is not None
    made = {streams.prefix + name for name in wanted(specs)}
    assert {*writer.subscribed, writer.dead_letter_topic, f"{bridge.prefix}raw"} <= made


def test_the_writer_writes_to_the_database_of_compose_with_the_connector_of_its_image() -> None:
    writer = load(WRITER)
    assert (writer.sink, writer.state_dsn) == (database_url(), database_url())
    assert is_postgres(writer.sink)
    assert writer.spark["spark.jars.packages"] == ""
    assert writer.spark["spark.driver.extraClassPath"] == "/opt/headrace/jars/*"
    assert "COPY --from=jars /opt/headrace/jars /opt/headrace/jars" in targets()["spark"]
    assert f":{writer.metrics_port}/readyz" in SERVICES["spark"]["healthcheck"]["test"][-1]


def database_url() -> str:
    database = SERVICES["postgres"]["environment"]
    return "postgresql://{POSTGRES_USER}:{POSTGRES_PASSWORD}@postgres:5432/{POSTGRES_DB}".format(**database)


def test_both_jobs_lease_one_capacity_from_the_database_and_the_api_shows_it() -> None:
    one, two = load(WRITER), load(ARCHIVE)
    shared = ("lease_store", "resource", "capacity", "headroom", "cost", "sink", "state_dsn", "kafka", "prefix", "max")
    assert [getattr(one, name) for name in shared] == [getattr(two, name) for name in shared]
    assert one.lease_store == SERVICES["api"]["environment"]["HEADRACE_API_CAPACITY_STORE"] == database_url()
    assert one.request_rows <= one.partition_worth * 2, "jobs take turns within a second"
    assert (one.job, one.table) != (two.job, two.table)
    volumes = [set(SERVICES[name]["volumes"]) for name in ("spark", "archive")]
    assert volumes[0].isdisjoint(volumes[1]), "each has a job file and a checkpoint of its own"


def test_health_checks_ask_at_the_ports_that_the_settings_listen_on() -> None:
    ports = {"bridge": BridgeSettings(), "streams": StreamsSettings(), "api": ApiSettings()}
    for name, settings in ports.items():
        assert f"http://127.0.0.1:{settings.http_port}/readyz" in SERVICES[name]["healthcheck"]["test"][-1]
        assert SERVICES[name]["ports"][0].endswith(f":{settings.http_port}")


def test_the_build_context_holds_what_the_dockerfile_copies_and_no_more() -> None:
    let_in = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = set()
    for line in re.findall(r"^COPY ((?!--from).*?)(?<!\\)$", (REPOSITORY / "Dockerfile").read_text(), re.M | re.S):
        sources |= set(line.replace("\\\n", " ").split()[:-1])
    assert all((REPOSITORY / source).exists() for source in sources)
    assert {Path(source).parts[0] for source in sources} == let_in


def test_environment_defaults_are_json() -> None:
    for name in ("ROOTS", "BATCHING", "REGISTRATION", "TIMELINES"):
        assert isinstance(json.loads(default(SERVICES["streams"]["environment"][f"HEADRACE_STREAMS_{name}"])), dict)
