"""A pytest plugin for `make mutants`: mutmut 3.7 asks an item for `_nodeid`, which pytest has as `nodeid` since 9.1."""

from __future__ import annotations

import pytest

if not hasattr(pytest.Item, "_nodeid"):
    pytest.Item._nodeid = property(lambda item: item.nodeid)  # type: ignore[attr-defined]
