"""The folder of a checkpoint, wherever it is: `port.py` says what one can do, `local.py` and `hadoop.py` do it."""
