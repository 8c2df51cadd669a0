"""The models in which rules hold are in `rewriting_cases.py` and `drawn_models.py`."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests have no package: their shared cases are imported from beside them.
sys.path.insert(0, str(Path(__file__).parent))
