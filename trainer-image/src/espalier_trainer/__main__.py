"""`python -m espalier_trainer`: the command of the trainer's image."""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # The first process of a container receives only signals that it handles; `main` handles them once imported.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

    from espalier_trainer.launch.main import main

    raise SystemExit(main())
