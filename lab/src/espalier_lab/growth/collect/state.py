"""A collection on disk: finished runs, and the checkpoints that others still continue from.

`collection.json` describes the collection, `runs/KEY.json` has the result of each finished run, `checkpoints/KEY/` the
state of a run before a decision. A record is written after the checkpoint, so a kill leaves each run done or not done.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError
from espalier_core.growth.channel_groups import ChannelGroup
from espalier_lab.growth.collect.cost import StepCost, cost_of
from espalier_lab.growth.collect.plan import CollectionRun
from espalier_lab.growth.collect.training import Collection, RunRecord
from espalier_lab.run_store import RunFolder, RunStoreError, check_same
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore

_IDENTITY: Final = "collection.json"


class CollectionIdentity(Record):
    """The properties that must be equal to continue a collection. Seeds may be added."""

    job: str
    """SHA-256 of the prepared job."""
    time_budget_s: float
    start_at_s: float
    decisions: int
    time: str
    step_cost_s: tuple[float, ...]
    throughput: float
    device: str
    torch: str


def identity_of(collection: Collection) -> CollectionIdentity:
    """Return the identity of a collection."""
    cost = collection.cost
    return CollectionIdentity(
        job=hashlib.sha256(json.dumps(collection.job.to_json(), sort_keys=True).encode()).hexdigest(),
        time_budget_s=collection.job.spec.time_budget_seconds,
        start_at_s=collection.start_at,
        decisions=collection.decisions,
        time="wall" if cost is None else "virtual",
        step_cost_s=()
        if cost is None
        else (cost.base, *(seconds for _, seconds in cost.added), *(seconds for _, _, seconds in cost.doubled)),
        throughput=collection.throughput,
        device=collection.device,
        torch=torch.__version__,
    )


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """The folder of one collection."""

    path: Path

    def held(self) -> AbstractContextManager[None]:
        """Lock the folder against other collections; raise `InUseError` if one works in it."""
        return self._runs.held("collection")

    def step_cost(self, points: Sequence[str], groups: Sequence[ChannelGroup] = ()) -> StepCost | None:
        """Return the step cost with which the collection here began; None if there is none."""
        known = self._identity()
        if known is None or len(known.step_cost_s) != len(points) + len(groups) + 1:
            return None
        return cost_of(known.step_cost_s[0], known.step_cost_s[1:], points, groups)

    def begin(self, collection: Collection) -> None:
        """Begin or continue a collection; raise `RunStoreError` if the folder holds another one."""
        ours, theirs = identity_of(collection), self._identity()
        if theirs is None:
            self._runs.write(_IDENTITY, ours)
        else:
            check_same(theirs, ours, f"{self.path}: holds the state of another collection")

    def clear(self) -> None:
        """Remove everything; refuse a folder that holds anything else."""
        strange = sorted(
            {entry.name for entry in self.path.iterdir()} - {"collection.json", "runs", "checkpoints", "lock"}
        )
        if strange:
            raise RunStoreError(f"{self.path}: not a folder of collections alone (it holds {strange[0]}); name another")
        (self.path / _IDENTITY).unlink(missing_ok=True)
        for name in ("runs", "checkpoints"):
            if (self.path / name).exists():
                shutil.rmtree(self.path / name)

    def remove(self) -> None:
        """Remove the folder with all files of collections."""
        self.clear()
        (self.path / "lock").unlink(missing_ok=True)
        self.path.rmdir()

    def done(self, runs: Sequence[CollectionRun], decisions: int) -> tuple[dict[CollectionRun, RunRecord], list[str]]:
        """Return the records of the finished runs, and complaints about damaged ones.

        A run whose checkpoint is gone counts only if all runs that continue from it are done.
        """
        records: dict[CollectionRun, RunRecord] = {}
        complaints: list[str] = []
        for run in reversed(runs):  # children come after their parents
            try:
                record = self._runs.read(_record(run), RunRecord)
            except DocumentError as error:
                complaints.append(f"{error}; trained again")
                continue
            if record is None:
                continue
            children = [other for other in runs if other.parent == run]
            waiting = not run.ends(decisions) and not all(child in records for child in children)
            if waiting and self.checkpoint(run) is None:
                complaints.append(f"{self._checkpoints(run).folder}: no whole checkpoint; trained again")
                continue
            records[run] = record
        return records, complaints

    def keep(self, run: CollectionRun, record: RunRecord) -> None:
        """Store the record of a finished run."""
        self._runs.write(_record(run), record)

    def save(self, run: CollectionRun, checkpoint: Checkpoint) -> None:
        """Write the checkpoint of a run that others continue from."""
        self._checkpoints(run).save(checkpoint)

    def checkpoint(self, run: CollectionRun) -> Checkpoint | None:
        """Return the checkpoint of a run; None if there is no complete one."""
        return self._checkpoints(run).load_latest()

    def forget_checkpoint(self, run: CollectionRun) -> None:
        """Remove the checkpoint of a run that no other run continues from any more."""
        if self._checkpoints(run).folder.exists():
            shutil.rmtree(self._checkpoints(run).folder)

    @property
    def _runs(self) -> RunFolder:
        return RunFolder(self.path)

    def _identity(self) -> CollectionIdentity | None:
        try:
            return self._runs.read(_IDENTITY, CollectionIdentity)
        except DocumentError as error:
            raise RunStoreError(str(error)) from error

    def _checkpoints(self, run: CollectionRun) -> CheckpointStore:
        return CheckpointStore(self.path / "checkpoints" / run.key)


def _record(run: CollectionRun) -> str:
    return f"runs/{run.key}.json"
