"""headrace engines: what happens to a message, decided by pure code."""
