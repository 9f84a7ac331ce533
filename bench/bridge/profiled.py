"""`python -m bench.bridge.profiled FILE`: a bridge that says at its end where its main thread's time went."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.engines.sampler import Sampler
from headrace_bridge.__main__ import main

if __name__ == "__main__":
    sampler = Sampler()
    with sampler:
        code = main()
    shares = [(name.removeprefix("headrace_bridge."), round(share, 3)) for name, share in sampler.shares()]
    Path(sys.argv[1]).write_text(json.dumps(shares))
    sys.exit(code)
