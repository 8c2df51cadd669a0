"""What a policy remembers, as text that outlives the scheduler: in an annotation, or in the folder of a run.

The text is compressed JSON and bounded. Only the same policy with the same settings reads it: another one would not
understand it.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import zlib
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError

logger = logging.getLogger(__name__)

MOST_CHARACTERS: Final = 128 * 1024
"""Of the text. All annotations of an object together have at most 256 KiB."""
_MOST_BYTES: Final = 32 * 1024 * 1024
"""Of the JSON: a text that becomes longer when it is read is not of this Espalier."""


class _KeptGpus(BaseModel):
    policy: str
    """With its settings."""
    memory: dict[str, Any] = Field(default_factory=dict)


class PolicyMemory:
    """The memory of one policy over its decisions."""

    def __init__(self, policy: str, kept: str | None = None) -> None:
        """Continue from what `to_text` returned of `policy` (name and settings); begin with nothing if that is not so.

        What is of jobs that are gone, the policy itself drops with its next decision.
        """
        self._policy = policy
        self._complaint = ""
        self.memory: Mapping[str, Any] = {}
        self.is_resumed = False
        """Nobody has decided by it yet: it may be of another version of the policy."""
        found = remembered(policy, kept) if kept else {}
        if found is not None:
            self.memory, self.is_resumed = found, bool(found)
        else:
            logger.warning("policy %s starts with an empty memory: what was stored is not its memory", policy)

    def keep(self, memory: Mapping[str, Any]) -> None:
        """Keep what a decision asked to keep."""
        self.memory, self.is_resumed = memory, False

    def to_text(self) -> str:
        """Return the text for `PolicyMemory` after a restart; "" where it cannot be kept, with a warning, once."""
        try:
            plain = json.dumps({"policy": self._policy, "memory": self.memory}, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            return self._complain(f"what it remembers is not plain JSON ({error}): it is lost when the scheduler ends")
        text = base64.b64encode(zlib.compress(plain.encode())).decode()
        if len(text) > MOST_CHARACTERS:
            most = f"at most {MOST_CHARACTERS} are kept: it is lost when the scheduler ends"
            return self._complain(f"what it remembers has {len(text)} characters, and {most}")
        self._complaint = ""
        return text

    def _complain(self, complaint: str) -> str:
        if not self._complaint:
            logger.warning("policy %s: %s", self._policy, complaint)
        self._complaint = complaint
        return ""


def remembered(policy: str, kept: str) -> Mapping[str, Any] | None:
    """Return what `PolicyMemory.to_text` has written of `policy`; None where it is another's, or damaged."""
    found = _read(kept)
    return found.memory if found is not None and found.policy == policy else None


def _read(kept: str) -> _KeptGpus | None:
    try:
        packed = base64.b64decode(kept, validate=True)
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(packed, _MOST_BYTES)
        return _KeptGpus.model_validate_json(plain) if unpacking.eof else None
    except (binascii.Error, zlib.error, ValidationError):
        return None
