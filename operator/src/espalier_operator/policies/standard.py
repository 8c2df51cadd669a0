"""The policy of every backend, and of every command that asks what a backend would do."""

from __future__ import annotations

from typing import Final

from espalier_operator.policies import Policy
from espalier_operator.policies.fair import FairPolicy

POLICY: Final[Policy] = FairPolicy()
"""What is spare is shared (`docs/architecture.md`, Sharing)."""
