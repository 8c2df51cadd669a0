"""Sets of families, for learning and held out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import nn

from espalier_core.types.job import OptimizerSpec
from espalier_core.types.task import Task
from espalier_lab.growth.corpus.designs import BODIES, SIZES, Design, built, drawn
from espalier_lab.growth.corpus.free import free_model, free_steps
from espalier_lab.growth.corpus.inputs import KINDS, NUMBERS, inputs_of
from espalier_lab.growth.corpus.language import LANGUAGE_SETS, LanguageFamilies
from espalier_lab.growth.judge.case import JudgeCase

BATCH_SIZE: Final = 32
DATA_SETS: Final = 2
"""Data sets per family."""


@dataclass(frozen=True, slots=True)
class Families:
    """A set of families drawn from one seed."""

    name: str
    seed: int
    counts: tuple[tuple[str, int], ...]
    """Families by kind of input."""
    task: Task = Task.CLASSIFICATION
    """Or regression, in which each family has one data set, and a name that no other task's family has."""

    def designs(self) -> tuple[Design, ...]:
        """Draw the designs; the kinds of input take turns, so that a part of the designs is a mix, too."""
        found = []
        for kind, count in self.counts:
            chance = random.Random(f"{self.seed}/{kind}")
            pairs = [(body, size) for body in BODIES[kind] for size in SIZES]
            chance.shuffle(pairs)
            again = pairs[: max(0, count - len(pairs))]
            for body, size in [*pairs, *again][:count]:
                design = drawn(kind, body, size, chance)
                found.append((chance.random(), design))
        return tuple(design for _, design in sorted(found, key=lambda one: one[0]))

    def __call__(self) -> tuple[JudgeCase, ...]:
        """Return the cases: each family with the data sets of its kind, the first ones of all families first."""
        turns, designs = range(1 if self.task is Task.REGRESSION else DATA_SETS), self.designs()
        return tuple(self._case(place, design, turn) for turn in turns for place, design in enumerate(designs))

    def case(self, place: int) -> JudgeCase:
        """Return one of the cases."""
        return self._case(place, self.designs()[place], 0)

    def _case(self, place: int, design: Design, turn: int) -> JudgeCase:
        sets, prefix = (NUMBERS, f"{self.name}-") if self.task is Task.REGRESSION else (KINDS, "")
        names = sets[design.kind]
        return case_of(design, f"{prefix}{place:03}", names[(place + turn) % len(names)], self.seed, self.task)


@dataclass(frozen=True, slots=True)
class FreeFamilies:
    """A set of families with freely drawn layers."""

    name: str
    seed: int
    counts: tuple[tuple[str, int], ...]
    """Families by kind of input."""

    def __call__(self) -> tuple[JudgeCase, ...]:
        """Return the cases: each family with a data set of its kind, then each with the next one."""
        drawn_ones = []
        for kind, count in self.counts:
            chance = random.Random(f"{self.seed}/{kind}")
            for place in range(count):
                steps, rate = free_steps(kind, chance), chance.choice([0.003, 0.005, 0.01])
                drawn_ones.append((place / count, kind, place, chance.randrange(2**31), steps, rate))
        return tuple(
            self._case(turn, *one[1:])
            for turn in range(DATA_SETS)
            for one in sorted(drawn_ones, key=lambda one: one[0])
        )

    def _case(self, turn: int, kind: str, place: int, choices: int, steps: int, rate: float) -> JudgeCase:
        names = KINDS[kind]
        data_set = names[(place + turn) % len(names)]
        inputs = inputs_of(data_set, self.seed)
        family = f"{self.name}-{kind}-{place:02}"
        return JudgeCase(
            name=f"{family}-{data_set}",
            family=family,
            module=partial(_free_module, kind, choices, data_set, self.seed),
            train=inputs.train,
            validation=inputs.validation,
            test=inputs.test,
            steps=steps,
            batch_size=BATCH_SIZE,
            optimizer=OptimizerSpec(name="Adam", learning_rate=rate),
        )


def _free_module(kind: str, choices: int, data_set: str, data_seed: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return free_model(kind, choices, inputs_of(data_set, data_seed))


def case_of(design: Design, place: str, data_set: str, seed: int, task: Task) -> JudgeCase:
    """Return the case of a design and a data set; its name begins with `place`."""
    inputs = inputs_of(data_set, seed)
    return JudgeCase(
        name=f"{place}-{design.name}-{data_set}",
        family=f"{place}-{design.name}",
        module=partial(_module, design, data_set, seed),
        train=inputs.train,
        validation=inputs.validation,
        test=inputs.test,
        steps=design.steps,
        batch_size=BATCH_SIZE,
        optimizer=OptimizerSpec(name="Adam", learning_rate=design.learning_rate),
        task=task,
    )


def _module(design: Design, data_set: str, data_seed: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return built(design, inputs_of(data_set, data_seed))


LEARNING: Final = Families("growth", 18, (("image", 30), ("tokens", 18), ("table", 16)))
"""The families that the shipped policy learns from. Signals are absent on purpose."""
FREE: Final = FreeFamilies("free", 1807, (("image", 40), ("tokens", 24), ("table", 16)))
"""Further ones with freely drawn layers."""
UNSEEN: Final = Families("unseen", 4081, (("image", 6), ("tokens", 5), ("table", 4), ("signal", 7)))
"""The drawn part of the families that judge it: another seed, and a kind of input that it has not met."""
REGRESSION: Final = Families("regression", 5050, (("image", 5), ("tokens", 4), ("table", 5)), Task.REGRESSION)
"""Families that learn numbers. Signals are absent here, too."""
REGRESSION_UNSEEN: Final = Families(
    "regression-unseen", 5150, (("image", 2), ("tokens", 2), ("table", 2), ("signal", 2)), Task.REGRESSION
)
"""Families that judge a policy of them."""
SETS: Final[dict[str, Families | FreeFamilies | LanguageFamilies]] = {
    one.name: one for one in (LEARNING, FREE, UNSEEN, *LANGUAGE_SETS, REGRESSION, REGRESSION_UNSEEN)
}


def names() -> Iterator[str]:
    """Yield the names of the sets."""
    yield from SETS
