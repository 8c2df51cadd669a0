"""Measured profiles of applications in the layout of the Pollux artifact (Qiao et al., OSDI 2021).

A folder for each application: `placements.csv` (seconds of a step by placement and local batch size), `scalability.csv`
(the same by numbers of nodes and workers), and `validation-BATCH.csv` (one epoch per line: progress, iterations,
metric, squared norm and variance of the gradient). A placement is the number of workers on each node. Step times
between the measured ones are interpolated as in the artifact's simulator: along the batch size if the placement was
measured, else linearly in (nodes, workers, local batch size).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.tables import Fields, rows

MAX_NODES: Final = 16
"""Maximum number of nodes with measured step times; on more nodes they are assumed to be the same."""
_LOCAL_LIMITS: Final = {"yolov3": 8}
"""The largest local batch size, if the artifact limits it below the largest measured one."""
Times = tuple[float, float]
"""Seconds of a step, and the part of it for synchronisation."""


class Application:
    """The measurements of one model and data set."""

    def __init__(self, folder: Path) -> None:
        """Read the folder. Raise `TraceError`."""
        self.name, self._folder = folder.name, folder
        self._epochs: dict[int, list[tuple[float, float, float, float]]] = {}
        for path in folder.glob("validation-*.csv"):
            batch = path.stem.removeprefix("validation-")
            if not batch.isdecimal() or not int(batch):
                raise TraceError(f"{path}: the name must end in a batch size")
            self._epochs[int(batch)] = [
                (
                    row.number("progress"),
                    row.number("iteration"),
                    row.number("grad_sqr"),
                    row.number("grad_var"),
                )
                for row in rows(path, Fields(required=("progress", "iteration", "metric", "grad_sqr", "grad_var")))
            ]
        if not self._epochs or not all(self._epochs.values()):
            raise TraceError(
                f"{folder}: holds no validation-BATCH.csv with epochs: it is not the profile of an application"
            )
        self._batches = sorted(self._epochs)
        self._placements: dict[tuple[int, ...], list[tuple[int, Times]]] = defaultdict(list)
        for row in rows(
            folder / "placements.csv", Fields(required=("placement", "local_bsz", "step_time", "sync_time"))
        ):
            placement = row.text("placement")
            if not placement.isdecimal():
                raise row.fault("placement", f"is {placement!r}; it must be the workers of each node, a digit a node")
            times = row.number("step_time", above=0.0), row.number("sync_time")
            self._placements[tuple(map(int, placement))].append((row.count("local_bsz"), times))
        if not self._placements:
            raise TraceError(f"{folder / 'placements.csv'}: has no lines")
        for points in self._placements.values():
            points.sort()
        sizes = [size for points in self._placements.values() for size, _ in points]
        self.min_local, largest = min(sizes), max(sizes)
        self.max_local = _LOCAL_LIMITS.get(self.name, largest)
        self.initial_batch, self.max_batch = self._batches[0], self._batches[-1]
        self.epochs = min(map(len, self._epochs.values()))
        """Last epoch, at whose end a job ends."""
        ends = ([epoch[0] for epoch in epochs[: self.epochs]] for epochs in self._epochs.values())
        self._progress: tuple[float, ...] = (0.0, *map(min, zip(*ends, strict=True)))
        self._times: dict[tuple[tuple[int, ...], int], Times] = {}
        self._interpolations: dict[tuple[int, int, int], float] = {}

    def progress_after(self, epochs: int) -> float:
        """Return the progress, in steps of the initial batch size, at which this many epochs are complete."""
        return self._progress[epochs]

    def iterations(self, batch: int, epochs: int) -> float:
        """Return the number of steps at a batch size after the first `epochs` epochs and one more."""
        return self._between(batch, epochs, 1)

    def gradient(self, batch: int, epoch: int) -> tuple[float, float]:
        """Return the squared norm and the variance of the gradient at a batch size during an epoch."""
        return self._between(batch, epoch, 2), self._between(batch, epoch, 3)

    def times(self, placement: tuple[int, ...], local: int) -> Times:
        """Return the seconds of a step with `local` examples per worker. Raise `TraceError` if nothing is known."""
        least = min(placement[i:] + placement[:i] for i in range(len(placement)))
        known = self._times.get((least, local))
        if known is None:
            known = self._times[least, local] = self._interpolated(least, local)
        return known

    def _between(self, batch: int, epoch: int, column: int) -> float:
        """Interpolate a column between the measured batch sizes."""
        known = self._interpolations.get((batch, epoch, column))
        if known is None:
            known = self._interpolations[batch, epoch, column] = self._interpolate(batch, epoch, column)
        return known

    def _interpolate(self, batch: int, epoch: int, column: int) -> float:
        at = bisect_right(self._batches, batch)
        low = self._batches[max(0, at - 1)]
        below = self._epochs[low][epoch][column]
        if low == batch or at in (0, len(self._batches)):
            return below
        high = self._batches[at]
        above = self._epochs[high][epoch][column]
        return ((batch - low) * above + (high - batch) * below) / (high - low)

    def _interpolated(self, placement: tuple[int, ...], local: int) -> Times:
        points = self._placements.get(placement)
        if points is not None:
            for (low, lower), (high, upper) in pairwise(points):
                if low <= local <= high:
                    return _line(low, lower[0], high, upper[0], local), _line(low, lower[1], high, upper[1], local)
            if len(points) == 1 and points[0][0] == local:
                return points[0][1]
        else:
            step, sync = self._scattered([min(len(placement), MAX_NODES), sum(placement), local])[0]
            if step == step:  # not NaN: within the measured range
                return float(step), float(sync)
        raise TraceError(
            f"{self._folder}: no step time is known for {sum(placement)} workers on {len(placement)} nodes with "
            f"{local} examples each; a smaller cluster, or more measurements, would help"
        )

    @cached_property
    def _scattered(self) -> Any:
        """The interpolation in (nodes, workers, local batch size) by Delaunay triangulation."""
        try:
            from scipy.interpolate import LinearNDInterpolator
        except ImportError as error:
            raise TraceError(
                "profiles of applications need SciPy, which is not installed: pip install scipy"
            ) from error
        means: dict[tuple[int, int, int], list[Times]] = defaultdict(list)
        for placement, points in self._placements.items():
            for local, times in points:
                means[len(placement), sum(placement), local].append(times)
        keys = sorted(means)
        values = [tuple(sum(column) / len(means[key]) for column in zip(*means[key], strict=True)) for key in keys]
        measured = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        for row in rows(self._folder / "scalability.csv", Fields(required=measured)):
            keys.append((row.count("num_nodes"), row.count("num_replicas"), row.count("local_bsz")))
            values.append((row.number("step_time", above=0.0), row.number("sync_time")))
        return LinearNDInterpolator(keys, values)


class Profiles:
    """The applications of a folder, read on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, dict[str, Application]()

    def application(self, name: str) -> Application | None:
        """Return the application `name`; None if it has no folder. Raise `TraceError`."""
        folder = self._folder / name
        if name not in self._known:
            if name in ("", ".", "..") or folder.parent != self._folder or not folder.is_dir():
                return None
            self._known[name] = Application(folder)
        return self._known[name]

    def __str__(self) -> str:
        return str(self._folder)


def _line(low: float, below: float, high: float, above: float, at: float) -> float:
    """Return the value at `at` of the line through two points, as SciPy's interp1d rounds it."""
    return (above - below) / (high - low) * (at - low) + below
