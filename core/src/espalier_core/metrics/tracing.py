"""The trace of one signal, named so that everyone who knows the job and the generation names it alike. No SDK.

The format is W3C Trace Context (https://www.w3.org/TR/trace-context/).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class SignalTrace:
    """The trace of a job's allocation, and its first span."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""

    @classmethod
    def of(cls, uid: str, generation: int) -> SignalTrace:
        """Return the trace of the `generation` of the allocation of the job with this UID."""
        digest = sha256(f"{uid}/{generation}".encode()).digest()
        return cls(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1)

    @property
    def traceparent(self) -> str:
        """The header `traceparent`, version 00, sampled."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"
