"""Write the CRDs: `python -m espalier_generate.crd FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from espalier_core.files.documents import write_text_atomically
from espalier_generate.crd.document import definitions


def main(arguments: list[str]) -> int:
    """Write the files into the folder named, print their paths; 2 where no folder is named."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python -m espalier_generate.crd FOLDER (that exists)", file=sys.stderr)
        return 2
    for name, text in definitions().items():
        path = Path(arguments[0]) / f"{name}.yaml"
        write_text_atomically(path, text)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
