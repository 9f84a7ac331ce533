"""Log lines of the job's processes: JSON, one a line, to stderr."""

from __future__ import annotations

import logging
import sys

import structlog


def to_stderr() -> None:
    """From now on."""
    logging.getLogger("py4j").setLevel(logging.ERROR)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
