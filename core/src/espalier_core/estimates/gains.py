"""How much growths gain in accuracy, and from which loss on advice does harm."""

from __future__ import annotations

from typing import Final

SPREAD: Final = 0.03
"""How much gains differ: about the deviation of those in the corpora. Learners count gains in this unit, and so do
the trees of stored policies: it cannot change without these."""
HARM: Final = 0.002
"""Who ends further than this below doing nothing is harmed."""
