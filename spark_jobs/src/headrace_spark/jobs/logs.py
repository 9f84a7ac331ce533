"""Log lines of the job's processes: JSON, one a line, to stderr, without secrets (spark-writer.md 12)."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from structlog.typing import EventDict

from headrace_spark import references


def to_stderr() -> None:
    """From now on."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            without_secrets,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def without_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """A processor: texts without what the job file's references stand for, and URLs without passwords."""
    return {name: references.redacted(value) if isinstance(value, str) else value for name, value in event.items()}
