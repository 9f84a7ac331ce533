"""`lease_store = "embedded"`: the lease coordinator as a thread of the driver (spark-writer.md 1, 6 and 12).

For one application whose executors can reach `spark.driver.host`. Its memory ends with the driver, so after each start
it grants nothing new until every lease of its predecessor has ended. The token is made for this run and goes to the
Python workers inside their tasks, never into Spark's settings.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from headrace_capacity.coordinator import Coordinator
from headrace_core.errors import ConfigError
from headrace_spark.settings import Settings
from headrace_spark.values import EMBEDDED

_HOST: Final = "spark.driver.host"


@contextmanager
def leases(settings: Settings) -> Iterator[Settings]:
    """The settings with the address and the token of a coordinator that runs as long as this block; unchanged if the
    job has another store, or none. Raises `ConfigError`."""
    if settings.lease_store != EMBEDDED:
        yield settings
        return
    token, host = secrets.token_urlsafe(32), settings.spark.get(_HOST, "127.0.0.1")
    try:
        coordinator = Coordinator(token, host=settings.spark.get("spark.driver.bindAddress", host)).start()
    except OSError as error:
        raise ConfigError("lease_store", f"embedded cannot listen at {host}: {error.strerror}") from None
    try:
        yield msgspec.structs.replace(
            settings, lease_store=f"tcp://{host}:{coordinator.port}", lease_token=token, lease_token_file=""
        )
    finally:
        coordinator.stop()
