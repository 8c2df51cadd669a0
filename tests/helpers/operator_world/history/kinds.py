"""What some histories have that others have not. It is drawn apart: all else of a seed stays what it was."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from espalier_core.types.job import DEFAULT_CONTROLLER

SECOND_CONTROLLER: Final = "example.com/second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a history has."""

    controllers: tuple[str, ...] = (DEFAULT_CONTROLLER,)
    """The names of its operators: each runs the jobs that name it, on the same nodes."""
    has_slices: bool = False
    """Some nodes have slices of GPUs, a resource that is counted apart."""
    has_devices: bool = False
    """Some nodes have devices of dynamic resource allocation, which pods claim by templates."""
    has_defaults: bool = False
    """LimitRanges of namespaces have defaults for containers, and their ResourceQuotas may limit CPUs."""
    has_failures: bool = False
    """Nodes refuse pods with GPUs for a while, and their device plugins restart."""
    has_denials: bool = False
    """A webhook denies pods of a namespace, or changes them, for a while; images cannot be pulled on some nodes."""
    has_programs: bool = False
    """Some jobs are programs, whose workers end by themselves, and somebody deletes pods that have ended."""
    has_side_cars: bool = False
    """A webhook puts a side-car into pods, first or last, that outlives the worker."""
    has_frozen_operators: bool = False
    """Operators are frozen, and wake up when another one acts."""
    has_gates: bool = False
    """A webhook puts scheduling gates on pods of a namespace, or lets them ask for more of nodes."""
    answers: bool | None = None
    """Whether the policy file by which its operators decide ever answers; None: they decide by other policies."""


PLAIN: Final = Kind()


def kind_of(seed: int) -> Kind:
    """Return what the history of a seed has."""
    chance = Random(f"{seed} kind")
    both = (DEFAULT_CONTROLLER, SECOND_CONTROLLER)
    return Kind(
        controllers=both if chance.random() < 0.2 else both[:1],
        has_slices=chance.random() < 0.2,
        answers=chance.choice((False, True)) if chance.random() < 0.1 else None,
        has_devices=chance.random() < 0.2,
        has_defaults=chance.random() < 0.2,
        has_failures=chance.random() < 0.3,
        has_denials=chance.random() < 0.3,
        has_programs=chance.random() < 0.3,
        has_side_cars=chance.random() < 0.2,
        has_frozen_operators=chance.random() < 0.3,
        has_gates=chance.random() < 0.25,
    )
