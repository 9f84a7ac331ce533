"""Writes what follows from topics and schemas, or checks that it is what it would be.

python -m headrace_schemas.generate            # write, below the present folder
python -m headrace_schemas.generate --check    # exit 1 and name the files that would change
"""

from __future__ import annotations

import sys
from pathlib import Path

from headrace_schemas import spark_types
from headrace_schemas.asyncapi import asyncapi
from headrace_schemas.page import page
from headrace_schemas.python_types import python_types
from headrace_schemas.state_page import state_page

PACKAGE = Path("schemas/src/headrace_schemas")


def generated() -> dict[Path, str]:
    """Every generated file and its text."""
    files = {
        Path("docs/topics.md"): page(),
        Path("docs/state.md"): state_page(),
        Path("schemas/asyncapi.json"): asyncapi(),
        PACKAGE / "types.py": python_types(),
    }
    return files | {PACKAGE / f"spark/{name}.json": spark_types.spark_type(name) for name in spark_types.NAMES}


def main(arguments: list[str]) -> int:
    """Write the files, or check them."""
    stale = []
    for path, text in generated().items():
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(str(path))
    if stale:
        print(f"not up to date: {', '.join(stale)}; run python -m headrace_schemas.generate", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
