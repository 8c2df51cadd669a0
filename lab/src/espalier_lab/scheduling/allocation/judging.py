"""Judging of policies and rules in DL2's cluster, on the same traces for all. Without torch."""

from __future__ import annotations

from typing import Final

from espalier_lab.scheduling.allocation.rules import Chooser, play
from espalier_lab.scheduling.allocation.slots import Slots
from espalier_lab.scheduling.allocation.source import source
from espalier_lab.scheduling.allocation.traces import draw
from espalier_lab.scheduling.learned.description import Floats
from espalier_lab.scheduling.learned.network import JobScorer
from espalier_lab.scheduling.seed_split import SeedSplit

NODES: Final = (48, 96)
"""Default numbers of nodes for learning and judging: the source's cluster, and one of half its size."""


def greedy(network: JobScorer) -> Chooser:
    """Return a chooser as in service: the best score, the first one among equals."""
    return lambda slots: network.scores(*slots.seen(slots.window)).argmax(1)


def judge(choose: Chooser, nodes: int, episodes: int, purpose: SeedSplit = SeedSplit.CHOOSE) -> Floats:
    """Return (episodes), the mean completion time in slots."""
    return play(Slots(source(), nodes, [draw(source(), purpose, index) for index in range(episodes)]), choose)
