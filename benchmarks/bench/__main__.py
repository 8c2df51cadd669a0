"""`python -m bench NAME`: run a benchmark; without a name: list them."""

from __future__ import annotations

import os
import signal

# Before torch and numpy are imported: all that pages show is measured on one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.command import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started ends
    main()
