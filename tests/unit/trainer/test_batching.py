"""The batch size that goodput decides on, without a run: limits, hesitation, memory, and what a checkpoint keeps."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.estimates.goodput import BatchLimits
from espalier_core.types.job import TrainingSpec
from espalier_core.types.measurements import GradientNoise, Measurements, Speed
from espalier_trainer.checkpoints.document import BatchState
from espalier_trainer.run.batching import GAIN, GROWTH, FixedBatching, GoodputBatching, Resized, batching_of
from espalier_trainer.run.meter import WorkerPlacement

SIZE = 64
LIMITS = BatchLimits(batch_size=SIZE, max_batch_size=64 * SIZE)
NOISY = GradientNoise(squared_norm=1.0, variance=4096.0, samples=50)
ALONE = WorkerPlacement()


class Device:
    """A stand-in for a device: what a step takes, and what of it was measured."""

    def __init__(self, fixed: float = 0.01, example: float = 0.00001, exchange: float = 0.0) -> None:
        self.fixed, self.example, self.exchange, self.parameters = fixed, example, exchange, 1000
        self.speeds: dict[tuple[int, ...], Speed] = {}

    def train(self, batching: GoodputBatching, place: WorkerPlacement = ALONE, steps: int = 20) -> None:
        """Take `steps` steps and measure them."""
        portion = batching.portion(place.workers, 0, 1 << 30)
        share = -(-portion.batches * SIZE // place.workers)
        for _ in range(steps):
            batching.stepped(portion, place.workers)
        key = place.workers, share, portion.passes, self.parameters
        self.speeds.pop(key, None)
        self.speeds[key] = Speed(
            nodes=place.nodes,
            workers=place.workers,
            batch_size=share,
            passes=portion.passes,
            parameters=self.parameters,
            steps=steps,
            step_seconds=self.fixed * portion.passes + self.example * share + self.exchange,
            sync_seconds=self.exchange,
        )

    def measured(self, noise: GradientNoise | None = NOISY) -> Measurements:
        return Measurements(speeds=tuple(self.speeds.values())[-16:], gradient=noise)


def choose(
    batching: GoodputBatching, device: Device, place: WorkerPlacement = ALONE, *, begins: bool = True, **measured: Any
) -> Resized | None:
    return batching.choose(lambda: device.measured(**measured), place, device.parameters, epoch_begins=begins)


def settled(batching: GoodputBatching, device: Device, place: WorkerPlacement = ALONE, epochs: int = 12) -> list[int]:
    """Return the sizes that were chosen one after the other, divided by the author's."""
    sizes = [batching.state().batches]
    for _ in range(epochs):
        device.train(batching, place)
        if (changed := choose(batching, device, place)) is not None:
            sizes.append(changed.after // SIZE)
    return sizes


def test_the_size_doubles_at_most_until_the_best_is_known():
    sizes = settled(GoodputBatching(LIMITS), Device())
    assert sizes[:4] == [1, 2, 4, 8]
    assert all(after <= GROWTH * before for before, after in pairwise(sizes))
    assert sizes[-1] > 8  # a step costs 10 ms, and an example 10 µs: the noise is worth a large batch


def test_a_device_whose_steps_take_as_long_as_their_examples_stays_at_the_authors_size():
    batching, device, little = GoodputBatching(LIMITS), Device(fixed=1e-6, example=0.001), {"variance": 400.0}
    sizes = [1]
    for _ in range(6):
        device.train(batching)
        choose(batching, device, noise=NOISY.model_copy(update=little))
        sizes.append(batching.state().batches)
    # After a try: with one size measured, half of a step counts as overhead.
    assert sizes in ([1] * 7, [1, 2, *[1] * 5])


@given(
    st.floats(1e-4, 0.1),
    st.floats(1e-6, 1e-3),
    st.floats(1, 1e6),
    st.integers(1, 8),
    st.integers(1, 100),
    st.none() | st.integers(16, 4096),
)
def test_it_stays_within_all_limits_and_comes_to_rest(fixed, example, variance, workers, most, per_worker):
    limits = BatchLimits(batch_size=SIZE, max_batch_size=most * SIZE, max_pass_size=per_worker)
    batching, device, place = GoodputBatching(limits), Device(fixed, example), WorkerPlacement(1, workers)
    noise = GradientNoise(squared_norm=1.0, variance=variance, samples=50)
    tried, largest_pass = 1, SIZE
    changes = []
    for _ in range(16):
        device.train(batching, place)
        changed = choose(batching, device, place, noise=noise)
        changes.append(changed is not None)
        portion = batching.portion(workers, 0, 1 << 30)
        share = -(-portion.batches * SIZE // workers)
        assert portion.batches <= min(GROWTH * tried, most)
        assert -(-share // portion.passes) <= GROWTH * largest_pass
        assert per_worker is None or -(-share // portion.passes) <= per_worker
        tried, largest_pass = max(tried, portion.batches), max(largest_pass, share)
    assert not any(changes[-4:])  # measurements that do not change do not change it


def test_a_little_more_goodput_is_not_worth_a_change():
    batching, device = GoodputBatching(LIMITS), Device(fixed=0.001, example=0.001 / SIZE)
    settled(batching, device)
    kept = batching.state()
    gains = []
    for more in range(100, 200):
        batching.load(kept)
        changed = choose(batching, device, noise=NOISY.model_copy(update={"variance": NOISY.variance * more / 100}))
        gains.append(None if changed is None else changed.expected)
    assert None in gains
    assert all(gain is None or gain > GAIN for gain in gains)
    assert gains[-1] is not None


@pytest.mark.parametrize("noise", [None, NOISY.model_copy(update={"samples": 3})])
def test_nothing_changes_before_the_noise_is_known(noise):
    batching, device = GoodputBatching(LIMITS), Device()
    device.train(batching)
    assert choose(batching, device, noise=noise) is None
    assert batching.portion(1, 0, 100).rate == 1.0


def test_within_an_epoch_it_changes_only_with_the_workers():
    batching, device = GoodputBatching(LIMITS), Device()
    device.train(batching)
    assert choose(batching, device, begins=False) is None
    changed = choose(batching, device, WorkerPlacement(1, 2), begins=False)
    assert changed.after == 2 * SIZE
    assert choose(batching, device, WorkerPlacement(1, 2), begins=True) is None  # not measured yet with two


def test_a_model_that_has_grown_keeps_its_size_until_it_was_measured():
    batching, device = GoodputBatching(LIMITS), Device()
    sizes = settled(batching, device)
    device.parameters = 2000
    assert choose(batching, device, noise=None) is None
    assert batching.state().batches == sizes[-1]
    assert batching.portion(1, 0, 1 << 30).rate > 1  # by the noise of the smaller model
    device.example = 0.01  # the larger one computes for long: the overhead of a step does not matter any more
    assert settled(batching, device)[-1] < sizes[-1]


def test_the_rate_follows_the_gain_and_the_end_of_an_epoch_takes_what_is_left():
    for adaptive in (False, True):
        batching = GoodputBatching(LIMITS, adaptive=adaptive)
        batching.load(BatchState(batches=8, noise=NOISY))
        whole, rest = batching.portion(2, 0, 100), batching.portion(2, 97, 100)
        gain = 8 * (4096 + SIZE) / (4096 + 8 * SIZE)
        assert (whole.batches, whole.full) == (8, True)
        assert whole.rate == pytest.approx(math.sqrt(gain) if adaptive else gain)
        assert (rest.batches, rest.full) == (3, False)
        assert 1 < rest.rate < whole.rate


def test_the_schedule_counts_epochs_of_progress_not_of_examples():
    batching = GoodputBatching(LIMITS)
    counted = []
    for state in (BatchState(), BatchState(batches=10, noise=NOISY.model_copy(update={"variance": 640.0}))):
        batching.load(state)
        for _ in range(5):
            for cursor in range(0, 100, state.batches):
                batching.stepped(batching.portion(1, cursor, 100), 1)
            counted.append(batching.schedule_due(100))
    assert counted[:5] == [True] * 5
    # Ten batches at once are worth 5.5 of the author's steps: the noise scale is ten of his batches.
    assert sum(counted[5:]) == 2


def test_where_the_memory_ends_the_size_is_given_up_and_never_tried_again():
    batching, device = GoodputBatching(LIMITS), Device()
    capacity, failures = 5 * SIZE, 0
    for _ in range(12):
        portion = batching.portion(1, 0, 1 << 30)
        while -(-portion.batches * SIZE // portion.passes) > capacity:
            failures += 1
            assert batching.out_of_memory(1) is not None
            portion = batching.portion(1, 0, 1 << 30)
        device.train(batching)
        choose(batching, device)
    assert failures == 1
    assert batching.state().pass_limit == 4 * SIZE
    assert batching.portion(1, 0, 1 << 30).batches == 4  # another pass would only do the same again


def test_workers_whose_exchange_is_dear_accumulate_gradients_over_passes_that_fit():
    limits = BatchLimits(batch_size=SIZE, max_batch_size=64 * SIZE, max_pass_size=SIZE)
    batching, place = GoodputBatching(limits), WorkerPlacement(1, 2)
    assert settled(batching, Device(exchange=0.1), place)[-1] > 4
    portion = batching.portion(2, 0, 1 << 30)
    assert portion.passes == portion.batches // 2


def test_a_model_that_has_grown_too_large_for_the_size_computes_it_in_passes():
    batching = GoodputBatching(LIMITS)
    batching.load(BatchState(batches=16, fits=0, noise=NOISY))
    sizes = []
    while (changed := batching.out_of_memory(1)) is not None:
        sizes.append((changed.after // SIZE, changed.passes))
    assert sizes == [(16, 2), (16, 4), (16, 8), (16, 16)]  # then the author's: it is the growth that does not fit


def test_memory_is_not_to_blame_at_the_authors_size():
    assert GoodputBatching(LIMITS).out_of_memory(1) is None
    assert FixedBatching().out_of_memory(1) is None


def test_a_checkpoint_before_the_first_step_of_a_size_holds_the_size_before_it():
    batching, device = GoodputBatching(LIMITS), Device()
    device.train(batching)
    changed = choose(batching, device)
    assert changed.untested
    kept = batching.state()
    assert (kept.batches, kept.pass_limit) == (1, SIZE)
    assert batching.stepped(batching.portion(1, 0, 100), 1)
    assert (batching.state().batches, batching.state().pass_limit) == (2, None)
    assert not batching.stepped(batching.portion(1, 2, 100), 1)


def test_a_run_that_resumes_has_the_same_size_unless_its_author_has_lowered_the_limit():
    batching, device = GoodputBatching(LIMITS), Device()
    settled(batching, device)
    kept = BatchState.model_validate_json(batching.state().model_dump_json())
    again, limited = GoodputBatching(LIMITS), GoodputBatching(BatchLimits(batch_size=SIZE, max_batch_size=3 * SIZE))
    again.load(kept)
    limited.load(kept)
    assert again.portion(1, 0, 1 << 30) == batching.portion(1, 0, 1 << 30)
    assert limited.portion(1, 0, 1 << 30).batches == 3


def test_a_script_that_computes_its_batch_at_once_gets_no_more_than_fits():
    limits = BatchLimits(batch_size=SIZE, max_batch_size=64 * SIZE, max_pass_size=3 * SIZE)
    batching, device = GoodputBatching(limits, accumulates=False), Device()
    assert settled(batching, device)[-1] == 3
    assert batching.portion(1, 0, 1 << 30).passes == 1


def test_the_author_decides_unless_the_job_says_goodput():
    (parameter,) = torch.nn.Linear(1, 1, bias=False).parameters()
    sgd, adam = torch.optim.SGD([parameter]), torch.optim.Adam([parameter])
    assert isinstance(batching_of(TrainingSpec(), 64, sgd), FixedBatching)
    rates = []
    for optimizer in (sgd, adam):
        training = TrainingSpec.model_validate({"batch": "Goodput", "maxBatchSize": 4096})
        batching = batching_of(training, 64, optimizer)
        batching.load(BatchState(batches=4, noise=NOISY))
        rates.append(batching.portion(1, 0, 100).rate)
    assert rates[0] == pytest.approx(rates[1] ** 2)
