"""headrace command line: local stack, demo, doctor."""
