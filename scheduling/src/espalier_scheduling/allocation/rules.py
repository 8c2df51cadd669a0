"""The rules that DL2 is compared with, in its cluster: what is given next in each episode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from espalier_scheduling.allocation.slots import OPTIONS, Passed, Slots
from espalier_scheduling.learned.description import Floats

Chosen = NDArray[np.int64]
"""(episodes): column of the window × options + option, or width × options for "stop"."""
Chooser = Callable[[Slots], Chosen]


def drf(slots: Slots) -> Chosen:
    """Dominant resource fairness (Ghodsi et al., NSDI 2011): one of both to the job with the smallest dominant share.

    Of equal ones to the first that came. Where what is next does not fit, the slot begins.
    """
    jobs, options, _ = slots.quantities(slots.window)
    full = (jobs.workers >= jobs.most_workers) | (jobs.servers >= jobs.most_servers)
    share = np.where(slots.in_window(slots.present) & ~full, jobs.share, np.inf)
    return _given(options.fits, share.argmin(1), OPTIONS - 1, np.isfinite(share.min(1)))


def optimus(slots: Slots) -> Chosen:
    """Optimus (Peng et al., EuroSys 2018): what shortens the rest of a job the most; nothing that lengthens it.

    As in the source a server is given where both help as much, and a job whose better choice is complete gets no more.
    """
    jobs, options, _ = slots.quantities(slots.window)
    worker, server = options.saved[..., 0], options.saved[..., 1]
    servers = server >= worker
    complete = np.where(servers, jobs.servers >= jobs.most_servers, jobs.workers >= jobs.most_workers)
    best = np.where(slots.in_window(slots.present) & ~complete, np.maximum(worker, server), -np.inf)
    job = best.argmax(1)
    rows = np.arange(len(job))
    return _given(options.fits, job, servers[rows, job].astype(int), best[rows, job] > 0)


def optimus_by_share(slots: Slots) -> Chosen:
    """Give what shortens the rest of a job the most by dominant share: a worker, a server or both, if it fits."""
    _, options, _ = slots.quantities(slots.window)
    return _best(options.fits, options.saved / options.share)


def optimus_ahead(slots: Slots) -> Chosen:
    """Optimus by share that looks over valleys: by the largest mean of any number of steps that begin with this one."""
    _, options, _ = slots.quantities(slots.window)
    return _best(options.fits, options.saved_ahead / options.share)


def fixed(counts: NDArray[np.int64]) -> Chooser:
    """Give each job its type's servers and workers, (types, 2), in the order in which jobs came."""

    def choose(slots: Slots) -> Chosen:
        jobs, options, _ = slots.quantities(slots.window)
        target = counts[slots.in_window(slots.kinds)]
        missing = np.stack([target[..., 1] - jobs.workers, target[..., 0] - jobs.servers], axis=-1) > 0
        fits = np.zeros(options.fits.shape, bool)
        fits[..., :2] = missing & (options.fits[..., :2] > 0)
        flat = fits.reshape(len(fits), -1)
        return np.where(flat.any(1), flat.argmax(1), flat.shape[1])

    return choose


def _best(fits: Floats, worth: Floats) -> Chosen:
    flat = np.where(fits > 0, worth, -np.inf).reshape(len(fits), -1)
    chosen = flat.argmax(1)
    return np.where(flat[np.arange(len(flat)), chosen] > 0, chosen, flat.shape[1])


def _given(fits: Floats, job: Chosen, option: Chosen | int, wanted: NDArray[np.bool_]) -> Chosen:
    """Return the option of a job where it is wanted and fits, else "stop"."""
    chosen, flat = job * OPTIONS + option, fits.reshape(len(fits), -1)
    return np.where(wanted & (flat[np.arange(len(flat)), chosen] > 0), chosen, flat.shape[1])


RULES: dict[str, Chooser] = {
    "drf": drf,
    "optimus": optimus,
    "optimus-by-share": optimus_by_share,
    "optimus-ahead": optimus_ahead,
}


def play(slots: Slots, choose: Chooser) -> Floats:
    """Play all episodes to their ends; return (episodes), the mean completion time in slots."""
    while (playing := ~slots.over).any():
        act(slots, choose(slots), playing)
    return np.array([slots.completion_slots(row).mean() for row in range(len(playing))])


def act(slots: Slots, chosen: Chosen, playing: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Passed]:
    """Do what was chosen in the episodes that are played; return those in which the slot passed, and what that cost."""
    window = slots.window
    stop = window.shape[1] * OPTIONS
    ends, goes = np.flatnonzero(playing & (chosen == stop)), np.flatnonzero(playing & (chosen != stop))
    slots.give(goes, window[goes, chosen[goes] // OPTIONS], chosen[goes] % OPTIONS)
    return ends, slots.stop(ends)
