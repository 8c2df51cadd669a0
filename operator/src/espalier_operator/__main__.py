"""`python -m espalier_operator`: the operator on Kubernetes, as its image runs it."""

from __future__ import annotations

import os
import signal
import sys

DEEPEST = 40_000


if __name__ == "__main__":
    # The first process of a container gets only signals that it handles; `main` handles them once it is imported.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    # The API server stores objects nested ten thousand deep. Python's own limit is a thousand, and a list or a watch
    # that contains one such job must still be read.
    sys.setrecursionlimit(DEEPEST)

    from espalier_operator.kube.process.main import main

    main(prog_name="espalier-operator")
