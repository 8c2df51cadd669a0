"""Rules for comparison with DL2 in its cluster: each chooses the next gift in each episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from espalier_lab.scheduling.allocation.slots import Slots
from espalier_lab.scheduling.allocation.tables import OPTIONS
from espalier_lab.scheduling.learned.description import Floats, JobQuantities, OptionQuantities
from espalier_lab.scheduling.learners.passed import Chosen, Passed

Chooser = Callable[[Slots], Chosen]
Worth = Callable[[JobQuantities, OptionQuantities], Floats]
"""The value of each option to each job, (..., jobs, options): larger ones are given first; 0: never."""


def optimus_by_share(_: JobQuantities, options: OptionQuantities) -> Floats:
    """Optimus by dominant share: the reduction of a job's remaining time; also for one of both."""
    return np.asarray(options.saved / np.maximum(options.share, _LEAST))


def optimus_ahead(_: JobQuantities, options: OptionQuantities) -> Floats:
    """Optimus by share with a look ahead: the largest mean over any number of steps that begin with this one."""
    return np.asarray(options.saved_ahead / np.maximum(options.share, _LEAST))


def soonest(jobs: JobQuantities, options: OptionQuantities) -> Floats:
    """Speedup by share, with more weight for jobs that end soon: log gain × (60 s + rest) ** -½; our own rule."""
    rest = jobs.best_left[..., None]
    return np.asarray(options.gain / (np.maximum(options.share, _LEAST) * np.sqrt(_SOON + rest)))


WORTHS: dict[str, Worth] = {
    "optimus-by-share": optimus_by_share,
    "optimus-ahead": optimus_ahead,
    "soonest": soonest,
}
"""Rules that give the most valuable option, in both forms of the environment."""
_LEAST: Final = 1e-9
"""Minimum share: padding takes nothing of the cluster, and never gets anything."""
_SOON: Final = 60.0
"""Seconds below which remaining times count about the same."""


def drf(slots: Slots) -> Chosen:
    """Dominant resource fairness (Ghodsi et al., NSDI 2011): one of both to the job with the smallest dominant share.

    Among equals, the first job in order of arrival. If the next one does not fit, the slot begins.
    """
    jobs, options, _ = slots.quantities(slots.window)
    full = (jobs.workers >= jobs.most_workers) | (jobs.servers >= jobs.most_servers)
    share = np.where(slots.in_window(slots.present) & ~full, jobs.share, np.inf)
    return _given(options.fits, share.argmin(1), OPTIONS - 1, np.isfinite(share.min(1)))


def optimus(slots: Slots) -> Chosen:
    """Optimus (Peng et al., EuroSys 2018): the largest reduction of a job's remaining time; never an increase.

    As in the source, a server is given if both help equally, and a job whose better choice is exhausted gets no more.
    """
    jobs, options, _ = slots.quantities(slots.window)
    worker, server = options.saved[..., 0], options.saved[..., 1]
    servers = server >= worker
    complete = np.where(servers, jobs.servers >= jobs.most_servers, jobs.workers >= jobs.most_workers)
    best = np.where(slots.in_window(slots.present) & ~complete, np.maximum(worker, server), -np.inf)
    job = best.argmax(1)
    rows = np.arange(len(job))
    return _given(options.fits, job, servers[rows, job].astype(int), best[rows, job] > 0)


def _by(worth: Worth) -> Chooser:
    """Return the rule that gives the most valuable option that fits and has a value."""

    def choose(slots: Slots) -> Chosen:
        jobs, options, _ = slots.quantities(slots.window)
        return best(options.fits, worth(jobs, options))

    return choose


def fixed(counts: NDArray[np.int64]) -> Chooser:
    """Give each job its type's servers and workers, (types, 2), in order of arrival."""

    def choose(slots: Slots) -> Chosen:
        jobs, options, _ = slots.quantities(slots.window)
        target = counts[slots.in_window(slots.kinds)]
        missing = np.stack([target[..., 1] - jobs.workers, target[..., 0] - jobs.servers], axis=-1) > 0
        fits = np.zeros(options.fits.shape, bool)
        fits[..., :2] = missing & (options.fits[..., :2] > 0)
        flat = fits.reshape(len(fits), -1)
        return np.where(flat.any(1), flat.argmax(1), flat.shape[1])

    return choose


def best(fits: NDArray[Any], worth: Floats) -> Chosen:
    """Return the column of the most valuable option that fits, (episodes); "stop" if nothing has a value."""
    flat = np.where(fits > 0, worth, -np.inf).reshape(len(fits), -1)
    chosen = flat.argmax(1)
    return np.where(flat[np.arange(len(flat)), chosen] > 0, chosen, flat.shape[1])


def chosen_by(worth: Floats, mask: NDArray[np.bool_]) -> Chosen:
    """Return, as `best`, a choice within `mask`, (episodes, width × options + 1), which may forbid to stop."""
    chosen = best(mask[:, :-1].reshape(worth.shape), worth)
    must = (chosen == mask.shape[1] - 1) & ~mask[:, -1]
    return np.where(must, mask.argmax(1), chosen)


def _given(fits: Floats, job: Chosen, option: Chosen | int, wanted: NDArray[np.bool_]) -> Chosen:
    """Return the option of a job if it is wanted and fits, else "stop"."""
    chosen, flat = job * OPTIONS + option, fits.reshape(len(fits), -1)
    return np.where(wanted & (flat[np.arange(len(flat)), chosen] > 0), chosen, flat.shape[1])


RULES: dict[str, Chooser] = {"drf": drf, "optimus": optimus, **{name: _by(worth) for name, worth in WORTHS.items()}}


def play(slots: Slots, choose: Chooser) -> Floats:
    """Play all episodes to their ends; return (episodes), the mean completion time in slots."""
    while (playing := ~slots.over).any():
        act(slots, choose(slots), playing)
    return np.array([slots.completion_slots(row).mean() for row in range(len(playing))])


def act(slots: Slots, chosen: Chosen, playing: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Passed]:
    """Apply the choices in the running episodes; return those in which the slot passed, with its cost."""
    window = slots.window
    stop = window.shape[1] * OPTIONS
    ends, goes = np.flatnonzero(playing & (chosen == stop)), np.flatnonzero(playing & (chosen != stop))
    slots.give(goes, window[goes, chosen[goes] // OPTIONS], chosen[goes] % OPTIONS)
    return ends, slots.stop(ends)
