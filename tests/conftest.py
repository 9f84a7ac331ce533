"""What all tests share: one real Kafka broker for a session, a fresh prefix of topic names for each test.

Tests marked `docker` are skipped where no engine runs, and the summary says so; with the variable CI set they fail. In
CI any other skip fails the run too, unless its reason begins with `ELSEWHERE`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from headrace.kafka import KafkaServer
from tests.support import jvm
from tests.support.docker import engine_problem, in_ci
from tests.support.patience import PATIENCE

NO_ENGINE = "needs a Docker engine: "
ELSEWHERE = "elsewhere: "
"""So begins the reason of a vector that is not about the part that runs it."""


settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile("repeatable")
"""No example is judged by time, and each run has the same ones. `--hypothesis-profile=random` (`make soak`): others."""


def pytest_configure(config: pytest.Config) -> None:
    """JVMs of tests are light; a run in parallel makes their archives first (`tests/support/jvm.py`)."""
    jvm.install()
    if getattr(config.option, "numprocesses", None) and (making := jvm.make_in_background()):
        config.add_cleanup(making.terminate)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every limit of a test is `PATIENCE` times as long, that of pyproject.toml, too."""
    for item in items:
        marked = item.get_closest_marker("timeout")
        seconds = float(marked.args[0] if marked else config.getoption("timeout") or config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(seconds * PATIENCE), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") and (problem := engine_problem()):
        (pytest.fail if in_ci() else pytest.skip)(NO_ENGINE + problem)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not in_ci():  # a worker of pytest-xdist has no reporter
        return
    skipped = [str(report.longrepr) for report in reporter.getreports("skipped")]
    wrong = [reason for reason in skipped if ELSEWHERE not in reason]
    if wrong and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.line(f"in CI nothing may be skipped: {wrong[:5]}", red=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.getreports("skipped") if NO_ENGINE in str(report.longrepr)]
    if skipped:
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{len(skipped)} tests with containers were skipped: {engine_problem()}", red=True)


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A running Apache Kafka; tests that stop it must use a server of their own."""
    server = KafkaServer(tmp_path_factory.mktemp("kafka")).start()
    yield server
    server.stop()


@pytest.fixture
def kafka(kafka_server: KafkaServer) -> str:
    """Bootstrap address of the session's broker."""
    return kafka_server.bootstrap


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}."
