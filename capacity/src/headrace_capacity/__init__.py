"""Lease stores for the shared capacity of `docs/spec/capacity.md` (sections 12 to 16), and their clients.

The protocol, both sides of it, is decided in `headrace_core.capacity`; what is here connects it to servers.
"""
