"""The names of the audit log's files, for who writes them and who reads them."""

from __future__ import annotations

from typing import Final

DECISIONS: Final = "decisions.jsonl"
EARLIER: Final = "decisions.1.jsonl"
"""What `DECISIONS` was before it became too large."""
