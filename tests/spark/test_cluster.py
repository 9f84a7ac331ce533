"""The writer by spark-submit on a standalone cluster with two workers, in its packed environment (spark-writer.md 12).

Nothing of this test's own environment reaches Spark's processes: master, workers, executors and driver have a bare one,
and the Python packages come out of the archive.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace.jars import connector_jars
from headrace_capacity.postgres import PostgresStore
from headrace_spark.jobs.pack import pack
from tests.support import standalone
from tests.support.docker import REPOSITORY
from tests.support.spark_job import Job, documents, largest_window, produce, query, until
from tests.support.standalone import Cluster, cluster, environment, get, submit

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]

DATABASE_PASSWORD, KAFKA_PASSWORD = "Kiebitz/7@Heide", 'Schilf"9'
CONF = {
    "spark.driver.memory": "768m",
    "spark.executor.memory": "640m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not compressed, which is quicker here; unpacked once for the driver, beside it."""
    file = tmp_path_factory.mktemp("environment") / "environment.tar.gz"
    assert pack(file, without=["deltalake", "httpx"], level=0) > 1000
    with tarfile.open(file) as packed:
        packed.extractall(file.parent / "environment", filter="tar")
    return file


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def start(one: Job, where: Cluster, archive: Path, secrets: dict[str, str]) -> None:
    """By the supervisor, as a service manager would."""
    python = archive.parent / "environment" / "bin" / "python"
    job = (str(REPOSITORY / "deploy/spark/writer.py"), "--config", str(one.config))
    command = submit(where.master, archive, ",".join(map(str, connector_jars())), CONF, *job)
    found = environment(PYSPARK_PYTHON="./environment/bin/python", PYSPARK_DRIVER_PYTHON=str(python), **secrets)
    with (one.folder / "log").open("ab") as log:
        one.process = subprocess.Popen(
            [sys.executable, "-m", "headrace_spark.jobs.supervise", "--first-wait", "1000", "--", *command],
            stdout=log, stderr=log, cwd=one.folder, env=found,
        )  # fmt: skip


def ended(one: Job) -> bool:
    """The writer ended by itself, and the supervisor waits to start it again."""
    return '"the writer ended"' in one.log()


def python_workers(where: Cluster) -> dict[int, str]:
    """The executors' Python processes: pid to executable."""
    found = {}
    for process in psutil.process_iter(["exe"]):
        exe = process.info["exe"] or ""
        if exe.startswith(str(where.work.resolve())):
            found[process.pid] = exe
    return found


def shown(where: Cluster, one: Job) -> dict[str, str]:
    """What web pages, REST interface, processes and logs show."""
    ui = next(line for line in one.log().splitlines() if '"spark ui"' in line)
    base = json.loads(ui)["url"]
    [app] = json.loads(get(f"{base}/api/v1/applications"))
    api = f"{base}/api/v1/applications/{app['id']}"
    pages = [f"{base}/{name}/" for name in ("environment", "jobs", "stages", "SQL", "StreamingQuery", "executors")]
    pages += [f"{api}/environment", f"{api}/sql", where.web]
    texts = {page: get(page) for page in pages}
    for process in psutil.process_iter(["cmdline"]):
        texts[f"command line of {process.pid}"] = " ".join(process.info["cmdline"] or [])
    for file in [one.config, one.folder / "log", *where.folder.rglob("*.log"), *where.work.rglob("std*")]:
        texts[str(file)] = file.read_text(errors="replace")
    return texts


def test_by_spark_submit_with_a_packed_environment_leased_capacity_and_no_secret_shown(
    job: Callable[..., Job], database: str, spark_cluster: Cluster, archive: Path, tmp_path: Path
) -> None:
    (tmp_path / "kafka-password").write_text(KAFKA_PASSWORD + "\n")
    url = database.replace("headrace@", "headrace:${env:WRITER_PASSWORD}@")
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="writer" password="${{file:{tmp_path}/kafka-password}}";'
    )
    one = job(sink=url, state_dsn=url, lease_store=url, resource="store", path="staged", capacity=1500, max=50,
              kafka_options={"sasl.jaas.config": jaas})  # fmt: skip
    one.options = {}
    one.change()
    produce(one, documents(200), spread=2)

    start(one, spark_cluster, archive, {"WRITER_PASSWORD": DATABASE_PASSWORD})
    most = dict.fromkeys(("granted", "owners"), 0.0)

    def all_counted() -> bool:  # leases go back as soon as the work is done
        found = one.metrics()
        for name in most:
            most[name] = max(most[name], found.get(f"headrace_spark_capacity_{name}", 0))
        return found.get("headrace_spark_records_total") == 200 or ended(one)

    until(all_counted, one)
    assert query(database, "SELECT count(*) FROM measurements") == [(2000,)]

    workers = python_workers(spark_cluster)
    assert {exe.removeprefix(f"{spark_cluster.work.resolve()}/").split("/")[0] for exe in workers.values()} == {
        "0",
        "1",
    }, "Python of the archive ran on both workers"
    assert str(standalone.HOME) not in " ".join(workers.values())
    assert PostgresStore(database).status("store").shared_capacity == 1500
    assert most["owners"] >= 2, "driver and Python workers have lease clients of their own"
    assert most["granted"] > 0
    assert 0 < largest_window(one, database) <= 1500
    seen = {name.removeprefix("headrace_spark_"): value for name, value in one.metrics().items()}
    assert seen['sink_answers_total{answer="done"}'] == seen["sink_latency_seconds_count"] == seen["requests_total"]
    assert seen["capacity_charged_total"] == seen["capacity_estimated_total"] == seen["cost_total"] == 4000
    assert (seen["staging_rows"], 0 < seen["key_skew"] <= 1, seen["rows_per_request"] > 1) == (0, True, True)

    for where, text in shown(spark_cluster, one).items():
        for secret in (DATABASE_PASSWORD, KAFKA_PASSWORD, "Kiebitz", "Schilf"):
            assert secret not in text, f"{where} shows a secret"

    assert one.terminate() == 0, one.log()[-4000:]
    assert '"told to stop"' in one.log()
    until(lambda: not python_workers(spark_cluster), one, dead=True)
    released = PostgresStore(database).status("store")
    assert [owner for owner in released.owners if owner.partitions] == [], "the leases of the driver were given back"


@pytest.mark.soak
def test_the_embedded_coordinator_serves_a_cluster_and_spark_submit_passes_exit_codes_on(
    job: Callable[..., Job], database: str, spark_cluster: Cluster, archive: Path
) -> None:
    """First with a topic that is not there, which is a matter of configuration: spark-submit passes the code on."""
    one = job(sink=database, state_dsn=database, path="staged", capacity=1500, max=50, lease_store="embedded",
              available_now=True, topics=["no-such-topic"])  # fmt: skip
    one.options = {}
    one.change()
    start(one, spark_cluster, archive, {})
    assert one.wait() == 2, one.log()[-4000:]
    assert "no-such-topic" in one.log()
    one.change(topics=[f"{one.prefix}batches"])
    produce(one, documents(100), spread=2)
    start(one, spark_cluster, archive, {})
    assert one.wait() == 0, one.log()[-4000:]
    assert query(database, "SELECT count(*) FROM measurements") == [(1000,)]
    assert query(database, "SELECT sum(cost) FROM hr_dispatch") == [(2000,)]
    assert 0 < largest_window(one, database) <= 1500
    assert not query(database, "SELECT 1 FROM pg_tables WHERE tablename = 'hr_lease'"), "no store but the driver"
