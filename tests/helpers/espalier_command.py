"""The command `espalier` as a module that `forked.Forked` can run."""

from __future__ import annotations

from espalier_cli.main import main

if __name__ == "__main__":  # not in processes that it spawns
    main()
