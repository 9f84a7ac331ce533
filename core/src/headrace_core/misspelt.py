"""Environment variables that no setting reads: a name that is misspelt would be ignored without a word.

They are told and end no start: a variable that an older version has read must not stop a service.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CUTOFF = 0.6


def unread(names: Iterable[str], prefix: str, settings: Iterable[str]) -> list[tuple[str, str]]:
    """Of `names` those that begin with `prefix` and are no setting's, each with the nearest one's, empty if none is.

    `settings`: names without the prefix. As with pydantic-settings, case does not matter.
    """
    known = {(prefix + setting).upper() for setting in settings}
    found = sorted(name for name in names if name.upper().startswith(prefix.upper()) and name.upper() not in known)
    return [(name, _nearest(name.upper(), prefix.upper(), known)) for name in found]


def _nearest(name: str, prefix: str, known: set[str]) -> str:
    """Without the prefix, which would make all alike."""
    rest = sorted(one.removeprefix(prefix) for one in known)
    near = get_close_matches(name.removeprefix(prefix), rest, n=1, cutoff=CUTOFF)
    return prefix + near[0] if near else ""
