"""Where rows go. One protocol (`port.py`), one contract suite (`tests/conformance/test_sinks.py`)."""
