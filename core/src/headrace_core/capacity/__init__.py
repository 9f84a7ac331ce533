"""Shared capacity: pacing, leases, batcher of operations (`capacity.md`)."""
