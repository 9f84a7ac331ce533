"""Which filters this client's session holds at the broker: remembered in a file, since no broker can be asked.

A filter that is removed from the configuration must be unsubscribed, or a persistent session delivers it for ever
(bridge.md 1.5). Before subscribing, the file holds old and new filters; after UNSUBACK, the new ones alone.
"""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path

from headrace_core.errors import ConfigError


class FilterMemory:
    """The filters of one client id. Raises ConfigError(`state_dir`) if it cannot be written or read."""

    def __init__(self, directory: Path, client_id: str) -> None:
        self._path = directory / f"{urllib.parse.quote(client_id, safe='')[:200]}.filters.json"

    def load(self) -> set[str]:
        """Filters that the session may hold."""
        try:
            return set(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError("state_dir", f"{self._path}: {error}") from error

    def save(self, filters: set[str]) -> None:
        """Replace what is remembered, in one step."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_suffix(".new")
            fresh.write_text(json.dumps(sorted(filters)))
            fresh.replace(self._path)
        except OSError as error:
            raise ConfigError("state_dir", f"{self._path}: {error}") from error
