"""`python -m espalier_monitoring FOLDER`: write everything into this checkout of the project."""

from __future__ import annotations

import sys
from pathlib import Path

from espalier_api.documents import write_text_atomically
from espalier_monitoring.outputs import outputs


def main(arguments: list[str]) -> int:
    """Write all files; return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m espalier_monitoring FOLDER", file=sys.stderr)
        return 2
    for path, text in outputs().items():
        whole = Path(arguments[0]) / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(whole, text)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
