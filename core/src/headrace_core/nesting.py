"""How deep JSON from outside may be nested: a rule of text, so that every reader decides the same.

Without one the reader's stack decides, and with it who calls it, the Python version and the machine; a value that was
taken in one place could then not be read in another: after a restore, by the API, by Spark.
"""

from __future__ import annotations

import re

DEEPEST = 500
"""Levels of objects and arrays in a payload: fewer than any reader manages, which depends on who calls it."""
STRING_OR_BRACKET = re.compile(r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]')
"""A string without end takes all that is left: whatever the text is, it is looked at once."""


def is_too_deep(text: str) -> bool:
    """Whether objects and arrays of a text that may be JSON are nested deeper than `DEEPEST`."""
    depth = 0
    if len(text) > DEEPEST and text.count("{") + text.count("[") > DEEPEST:
        for token in STRING_OR_BRACKET.findall(text):
            depth += (token in "{[") - (token in "}]")
            if depth > DEEPEST:
                return True
    return False
