"""The best job of a decision in progress, after each gift, without scoring all jobs each time.

A gift to one job changes the scores of all others a little, through the free part and the mean over jobs. The weights
limit the change. So each job has bounds on its score since it was last scored, and only jobs that may be the best are
scored again. The choice is that of `JobScorer.scores` over all jobs, but for rounding (float32).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.learned.description import OF_FREE
from espalier_lab.scheduling.learned.files import LearnedPolicyError
from espalier_lab.scheduling.learned.network import Floats32, JobScorer
from espalier_lab.scheduling.learned.picture import PartialDecision

_ROUNDING = 1e-4
"""Difference below which scores are all computed again."""
_UNKNOWN = 1e30
"""Bound on a score that was not computed yet, to which changes can be added."""


class Ranking:
    """Scores of the jobs of a decision in progress; give workers through `give`."""

    def __init__(self, network: JobScorer, picture: PartialDecision) -> None:
        """Begin without scores. The network's only option is workers."""
        self._network, self._picture = network, picture
        self._job_table, self._option_table = picture.tables()
        count = len(picture.jobs)
        rows = np.arange(count), picture.workers
        self._of_jobs = network.of_jobs(self._job_table[rows])
        of_options, direct = network.of_options(self._option_table[rows][:, None, :])
        self._of_options, self._direct = of_options[:, 0], direct[:, 0]
        self._encoded = np.empty_like(self._of_jobs)
        self._mean = np.full(count, 1 / count, np.float32)
        self._changed = 0.0
        """Maximum change of each score since the beginning."""
        self._free_column = network.weights["pair.option"][:, OF_FREE]
        self._free_direct = network.weights["score.option"][OF_FREE]
        # Maximum change of a score per unit of a pair, and of an encoded job.
        self._by_pair = np.abs(network.weights["score.weight"]) @ np.abs(network.weights["deep.weight"])
        self._by_job = self._by_pair @ np.abs(network.weights["pair.job"])
        self._by_free = float(self._by_pair @ np.abs(self._free_column) + np.abs(self._free_direct))
        self._before: tuple[Floats32, Floats32, int] | None = None
        """The last contribution to all jobs and pairs at a choice, and the GPUs that were free."""
        self._look()

    def choice(self) -> int | None:
        """Return the job that gets its base workers or one more, the first among equals; None: stop.

        Raise `LearnedPolicyError` if weights are so large that scores overflow.
        """
        if not self._left:
            return None
        network, encoded, cluster = self._network, self._encoded, self._picture.cluster()
        shift = network.shift(cluster)
        np.add(self._of_jobs, shift, out=encoded)
        np.maximum(encoded, 0, out=encoded)
        pooled = self._mean @ encoded
        around = network.around(pooled)
        self._change(shift, around)
        least = self._below.max() - 2 * self._changed - _ROUNDING
        (rows,) = (self._above >= least).nonzero()
        scores = self._scores(rows, around)
        stop = network.stop(pooled, cluster) if self._may_stop else -np.inf
        # Every comparison with NaN is false.
        if not (self._changed < _UNKNOWN and np.abs(scores).max(initial=0) < _UNKNOWN and stop < _UNKNOWN):
            raise LearnedPolicyError("its weights are so large that scores are not finite; learn it again")
        self._above[rows], self._below[rows] = scores - self._changed, scores + self._changed
        best = int(scores.argmax())
        if stop > scores[best]:
            return None
        return int(rows[best])

    def give(self, index: int) -> None:
        """Give the job of this index its next workers."""
        picture, starts = self._picture, not self._may_stop
        picture.give(index)
        row = index, picture.workers[index]
        self._of_jobs[index] = self._network.of_jobs(self._job_table[row])
        of_options, direct = self._network.of_options(self._option_table[row][None, :])
        self._of_options[index], self._direct[index] = of_options[0], direct[0]
        self._above[index], self._below[index] = _UNKNOWN, -_UNKNOWN
        if starts or picture.is_complete(index):
            self._above[index] = -np.inf
            self._left -= 1
        if picture.free < self._dearest or not self._left:
            self._look()

    def _look(self) -> None:
        """Update the mask of choices. A gift removes at most one job from it, until something no longer fits."""
        mask = self._picture.mask()
        self._left, self._may_stop = int(mask[:-1].sum()), bool(mask[-1])
        self._above, self._below = np.where(mask[:-1], _UNKNOWN, -np.inf), np.full(len(mask) - 1, -_UNKNOWN)
        """The last computed score of each job, minus and plus the possible change of scores until then; the upper one
        is minus infinity for illegal jobs."""
        costs = self._picture.costs
        self._dearest = int(costs[costs <= self._picture.free].max(initial=0))
        """Maximum GPUs of a job's next gift that still fits: a gift that does not fit now never will."""

    def _scores(self, rows: NDArray[np.int64], around: Floats32) -> Floats32:
        """Return the scores of these jobs."""
        free = self._picture.of_free(rows).astype(np.float32)
        of_options = self._of_options[rows] + free[:, None] * self._free_column
        rated = self._network.rated(self._encoded[rows], of_options[:, None, :], around)
        return np.asarray(rated[:, 0] + self._direct[rows] + free * self._free_direct)

    def _change(self, shift: Floats32, around: Floats32) -> None:
        """Add the possible change of scores since the last choice.

        Rectified units change by no more than their inputs, so absolute weights determine the largest change.
        """
        free = self._picture.free
        if self._before is not None:
            last_shift, last_around, last_free = self._before
            self._changed += float(
                self._by_job @ np.abs(shift - last_shift)
                + self._by_pair @ np.abs(around - last_around)
                + self._by_free * self._dearest * (1 / free - 1 / last_free)
            )
        self._before = shift, around, free
