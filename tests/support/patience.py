"""How long tests wait for what must come: no limit here judges a machine, it only ends a test that hangs."""

from __future__ import annotations

PATIENCE = 5
"""A limit in a test is what an idle machine needs, generously; all of them, pytest's too, are so many times as long."""
