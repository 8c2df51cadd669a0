"""Fencing: of several leaders of a job, only the latest writes checkpoints.

A leader on a node that was given up may still run after its successor has started. So each leader claims the checkpoint
folder when it starts, in the file `leader.json`, and reads the file before it writes a checkpoint and again before it
renames the complete checkpoint into place.

This needs a file system on which rename is atomic and an opened file shows its last content: a local one, or NFS with
its default options (close-to-open consistency). There is no lock between the last read and the rename: a leader that
stops exactly there leaves one more checkpoint. It is a complete one, and replaces none: numbers are never reused. For
the same reason an earlier attempt that starts at the same moment as a later one may write until the later one saves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, read_document, write_document
from espalier_core.types.environment import LEADER_FILE
from espalier_trainer.errors import SupersededError

logger = logging.getLogger(__name__)


class LeaderClaim(Record):
    """Identity of the leader that writes. Of two leaders of a job, the one with the larger attempt is the later one.

    Attempts of different jobs (one of the same name that was created again), and equal ones, cannot be compared: the
    leader that started last counts.
    """

    job_uid: str = ""
    attempt: int = 0
    incarnation: str

    def precedes(self, other: LeaderClaim) -> bool:
        """Return whether `other` is a later attempt of the same job."""
        return self.job_uid == other.job_uid and self.attempt < other.attempt


@dataclass
class Fence:
    """The claim of one leader to a folder."""

    folder: Path
    claim: LeaderClaim
    _claimed: bool = field(init=False, default=False)

    def take_over(self) -> None:
        """Claim the folder. Raises `SupersededError` if a later attempt has claimed it, and `OSError`."""
        try:
            found = self._found()
        except DocumentError as error:
            logger.warning("%s; replacing it", error)
            found = None
        if found is not None and self.claim.precedes(found):
            raise self._superseded(found)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_document(self.folder / LEADER_FILE, self.claim)
        self._claimed = True

    def require(self) -> None:
        """Raise `SupersededError` if another leader has taken over; claim the folder if that has failed so far.

        A claim of an earlier attempt that was written later, and a missing one, are replaced. Raises `OSError`.
        """
        if not self._claimed:
            self.take_over()
            return
        try:
            found = self._found()
        except DocumentError as error:
            raise SupersededError(f"the claim of another leader cannot be read ({error})") from error
        if found == self.claim:
            return
        if found is not None and not found.precedes(self.claim):
            raise self._superseded(found)
        write_document(self.folder / LEADER_FILE, self.claim)

    def _found(self) -> LeaderClaim | None:
        try:
            return read_document(self.folder / LEADER_FILE, LeaderClaim)
        except FileNotFoundError:
            return None

    def _superseded(self, found: LeaderClaim) -> SupersededError:
        return SupersededError(
            f"{self.folder}: attempt {found.attempt} (incarnation {found.incarnation}) has taken over from attempt "
            f"{self.claim.attempt}"
        )
