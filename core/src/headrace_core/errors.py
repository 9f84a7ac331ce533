"""The base of all errors: a stable `code`, and whether the same input can work later."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base class. `code` is stable and goes to dead letters and answers; `retry` = the same input can work later."""

    code: str = "error"
    retry: bool = False


class ConfigError(HeadraceError, ValueError):
    """A setting is wrong. `field` names it."""

    code = "config"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
