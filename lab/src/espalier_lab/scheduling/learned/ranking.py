"""The best job of a picture, over and over while workers are given, without scoring all jobs each time.

What is given to one job changes the scores of all others a little: by what is free, and by the mean over jobs. How much
at most follows from the weights. So each job has bounds on its score since it was scored last, and only those that may
be the best are scored again. The choice is that of `JobScorer.scores` over all jobs, but for rounding (float32).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.learned.description import OF_FREE
from espalier_lab.scheduling.learned.files import LearnedPolicyError
from espalier_lab.scheduling.learned.network import Floats32, JobScorer
from espalier_lab.scheduling.learned.picture import PartialDecision

_ROUNDING = 1e-4
"""Scores that are nearer to each other are all worked out again."""
_UNKNOWN = 1e30
"""Bounds on a score that was not worked out yet, so that they can be added to."""


class Ranking:
    """Scores of the jobs of a picture; workers are to be given by `give`."""

    def __init__(self, network: JobScorer, picture: PartialDecision) -> None:
        """Begin; nothing is scored yet. The network gives workers alone."""
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
        """What each score may have changed by since the beginning, at most."""
        self._free_column = network.weights["pair.option"][:, OF_FREE]
        self._free_direct = network.weights["score.option"][OF_FREE]
        # By how much a score may change, at most, with each unit of a pair, and of an encoded job.
        self._by_pair = np.abs(network.weights["score.weight"]) @ np.abs(network.weights["deep.weight"])
        self._by_job = self._by_pair @ np.abs(network.weights["pair.job"])
        self._by_free = float(self._by_pair @ np.abs(self._free_column) + np.abs(self._free_direct))
        self._before: tuple[Floats32, Floats32, int] | None = None
        """What was added to all jobs and pairs when it was chosen last, and the GPUs that were free."""
        self._look()

    def choice(self) -> int | None:
        """Return the job that is to get its base workers or one more, of equal ones the first; None: stop.

        Raises `LearnedPolicyError` where weights are so large that scores overflow.
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
        # Of what is no number, each comparison is false.
        if not (self._changed < _UNKNOWN and np.abs(scores).max(initial=0) < _UNKNOWN and stop < _UNKNOWN):
            raise LearnedPolicyError("its weights are so large that scores are not finite; learn it again")
        self._above[rows], self._below[rows] = scores - self._changed, scores + self._changed
        best = int(scores.argmax())
        if stop > scores[best]:
            return None
        return int(rows[best])

    def give(self, index: int) -> None:
        """Give the job of this index what it can get next."""
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
        """See again what can be chosen. A gift takes no more than one job from that, until something is too dear."""
        mask = self._picture.mask()
        self._left, self._may_stop = int(mask[:-1].sum()), bool(mask[-1])
        self._above, self._below = np.where(mask[:-1], _UNKNOWN, -np.inf), np.full(len(mask) - 1, -_UNKNOWN)
        """The score of each job when it was worked out last, less and plus what scores may have changed by until then;
        minus infinity above those that cannot be chosen."""
        costs = self._picture.costs
        self._dearest = int(costs[costs <= self._picture.free].max(initial=0))
        """The most GPUs that a job would take of those that still fit: what does not fit now never will."""

    def _scores(self, rows: NDArray[np.int64], around: Floats32) -> Floats32:
        """Return the scores of these jobs."""
        free = self._picture.of_free(rows).astype(np.float32)
        of_options = self._of_options[rows] + free[:, None] * self._free_column
        rated = self._network.rated(self._encoded[rows], of_options[:, None, :], around)
        return np.asarray(rated[:, 0] + self._direct[rows] + free * self._free_direct)

    def _change(self, shift: Floats32, around: Floats32) -> None:
        """Count by how much scores may have changed since the last choice.

        Rectified units change by no more than what goes in, so the largest change follows from absolute weights.
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
