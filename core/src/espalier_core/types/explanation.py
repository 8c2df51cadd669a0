"""The explanation of a job that `espalier explain` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its sentences."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of a job, its cause, and what would change it."""

    job: str
    """Namespace and name; the name alone on this machine."""
    phase: str
    reason: str | None
    """A reason of `docs/reference/reasons.md`; None where nothing has been decided about the job yet."""
    sections: tuple[Section, ...]
    """Sections, the most important one first."""

    def to_json(self) -> dict[str, Any]:
        """Return it in plain JSON types."""
        sections = [{"title": section.title, "lines": list(section.lines)} for section in self.sections]
        return {"job": self.job, "phase": self.phase, "reason": self.reason, "sections": sections}

    def __str__(self) -> str:
        return "\n\n".join("\n  ".join((section.title, *section.lines)) for section in self.sections)
