"""Play a trace on one way to train, and count what came of it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.joining.place import PATIENCE_SECONDS, Step, StuckError
from bench.volatile.device import BATCH
from bench.volatile.traces import SECONDS, Change, trace
from bench.volatile.ways import MODEL, WAYS, Way
from espalier_core.base import Record

NOTICE_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.01


class Key(Record):
    """What was played."""

    way: str
    trace: str
    notice: bool
    seed: int
    length: float


class Played(Key):
    """What came of it, from the first step of all first workers on."""

    useful: int
    """Examples in the steps that made the last weights."""
    computed: int
    """Examples that devices have computed until the end of the last step."""
    gpu_seconds: float
    """Of GPUs from their coming until they are given back, or go."""
    stop: float
    """The longest time without the end of a step, in seconds."""
    mended: int
    """Processes that ended by themselves and were started again."""
    loss: float | None
    accuracy: float | None
    """Of the last checkpoint, on the test split; None where there is none."""
    load: float
    """Of the machine at the end."""


def play(key: Key, peers: Path) -> Played:
    """Play a trace in new processes; `peers` is the environment that has them."""
    with TemporaryDirectory(prefix="espalier-volatile-") as name:
        Way.peers = peers
        way = WAYS[key.way](Path(name), key.seed)
        try:
            changes, seconds = trace(key.trace, key.seed, key.length), SECONDS[key.trace] * key.length
            way.begin(changes[0].gpus)
            began = _ready(way, changes[0].gpus)
            held = _Held(way, key, changes[0].gpus, began)
            for change in changes[1:]:
                held.change(change)
            gpu_seconds = held.end(seconds)
            steps, computed = way.place.steps.look(), Path(name, "computed").read_text().splitlines()
            ended = began + seconds
            useful, last = counted(steps, began, ended)
            rows = [line.split() for line in computed]
            loss, accuracy = _evaluated(way.finish())
            return Played(
                **key.model_dump(),
                useful=useful,
                computed=sum(int(count) for at, count in rows if began < float(at) <= last),
                gpu_seconds=gpu_seconds,
                stop=longest_stop(steps, began, ended),
                mended=way.mended,
                loss=loss,
                accuracy=accuracy,
                load=os.getloadavg()[0],
            )
        except StuckError as error:
            raise StuckError(f"{key}: {error}") from error
        finally:
            way.place.end()


def counted(steps: Sequence[Step], began: float, ended: float) -> tuple[int, float]:
    """Return the examples of the steps between two moments that were not taken again, and the end of the last step.

    Several workers may have written down the same step.
    """
    lasting: dict[int, Step] = {}
    for step in steps:
        for number in range(step.number + 1, max(lasting, default=0) + 1):
            lasting.pop(number, None)
        if step.number not in lasting or lasting[step.number].world != step.world:
            lasting[step.number] = step
    within = [step for step in lasting.values() if began < step.ended <= ended]
    last = max((step.ended for step in steps if step.ended <= ended), default=began)
    return BATCH * sum(step.batches for step in within), last


def longest_stop(steps: Sequence[Step], began: float, ended: float) -> float:
    """Return the longest time between two moments in which no step ended."""
    moments = [began, *sorted(step.ended for step in steps if began < step.ended < ended), ended]
    return max(after - before for before, after in pairwise(moments))


def _ready(way: Way, gpus: int) -> float:
    """Wait for a step of all workers; return its end."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        way.mend()
        for step in way.place.steps.look():
            if step.world == gpus:
                return step.ended
        time.sleep(_TICK_SECONDS)
    raise StuckError(f"no step of {gpus} workers within {PATIENCE_SECONDS:.0f} s")


class _Held:
    """The GPUs that a way holds, and for how long."""

    def __init__(self, way: Way, key: Key, gpus: int, began: float) -> None:
        self._way, self._key, self._began = way, key, began
        self._since = dict.fromkeys(range(gpus), began)
        self._leaving: set[int] = set()
        self._used = 0.0
        self._draw = random.Random(f"victims {key.seed}")

    def change(self, change: Change) -> None:
        """Wait for a change, and let it happen; GPUs that go are warned before, if there is notice."""
        lost = len(self._since) - len(self._leaving) - change.gpus
        if self._key.notice and lost > 0:
            self._until(change.second - NOTICE_SECONDS)
            for gpu in sorted(self._since.keys() - self._leaving, reverse=True)[:lost]:
                self._leaving.add(gpu)
                self._way.warn(gpu)
        self._until(change.second)
        while len(self._since) > change.gpus:
            gpu = max(self._leaving) if self._leaving else self._draw.choice(sorted(self._since.keys() - {0}))
            self._release(gpu)
            self._way.gone(gpu)
        while len(self._since) < change.gpus:
            gpu = min(set(range(change.gpus)) - self._since.keys())
            self._since[gpu] = time.monotonic()
            self._way.come(gpu)

    def end(self, second: float) -> float:
        """Wait for the end of the trace; return the GPU-seconds."""
        self._until(second)
        for gpu in list(self._since):
            self._release(gpu)
        return self._used

    def _until(self, second: float) -> None:
        while time.monotonic() < self._began + second:
            self._way.mend()
            there = self._way.there
            for gpu in [gpu for gpu in self._leaving if gpu not in there or not there[gpu].running]:
                self._release(gpu)
                self._way.gone(gpu)
            time.sleep(_TICK_SECONDS)

    def _release(self, gpu: int) -> None:
        self._leaving.discard(gpu)
        self._used += time.monotonic() - self._since.pop(gpu)


def _evaluated(path: Path) -> tuple[float, float] | tuple[None, None]:
    """Return loss and accuracy of a checkpoint on the test split."""
    if not path.exists():
        return None, None
    import torch
    from torch import nn

    from espalier_core.types.job import DatasetSpec, ModelSpec
    from espalier_trainer import load
    from espalier_trainer.data import load_data
    from espalier_trainer.models.zoo import build_model

    data = load_data(DatasetSpec.model_validate(MODEL.dataset))
    if path.is_dir():
        model = load(path)
    else:
        model = build_model(ModelSpec.model_validate(MODEL.model), data.classes, data.example_input())
        model.load_state_dict(torch.load(path, weights_only=True)["model"])
    inputs, labels = data.test.batch(torch.arange(len(data.test)), None)
    with torch.no_grad():
        outputs = model.eval()(inputs)
    right = (outputs.argmax(1) == labels).float().mean()
    return float(nn.functional.cross_entropy(outputs, labels)), float(right)
