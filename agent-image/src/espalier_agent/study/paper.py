"""What the paper reports (Lamelas, Figures 8, 10 and 12), to stand beside ours."""

from __future__ import annotations

from typing import Final

FIGURE_12: Final = {
    ("cnn1", "early"): (0.7391, 1),
    ("cnn1", "middle"): (0.7135, 5),
    ("cnn1", "late"): (0.6827, 1),
    ("cnn2", "early"): (0.4074, 6),
    ("cnn2", "middle"): (0.4092, 1),
    ("cnn2", "late"): (0.3707, 1),
}
"""Learnt from scratch, by model and scenario: accuracy and rank of 64 of one agent."""

FIGURE_8A: Final = {
    ("early", "late"): (0.6827, 1),
    ("early", "middle"): (0.6928, 17),
    ("middle", "early"): (0.7194, 11),
    ("middle", "late"): (0.6209, 33),
    ("late", "early"): (0.7383, 2),
    ("late", "middle"): (0.7135, 5),
}
"""Learnt on the first scenario, then on the second, both of CNN#1: best accuracy and rank over temperatures."""

FIGURE_10: Final = {
    "early-late-middle": {"early": (0.7260, 8), "middle": (0.6928, 17), "late": (0.6827, 1)},
    "late-middle-early": {"early": (0.7391, 1), "middle": (0.7135, 5), "late": (0.6323, 22)},
}
"""Accuracy and rank of a curriculum's agent on each scenario of CNN#1: read off the agents published with the paper,
which draws them as bars without figures."""

TEMPERATURES: Final = (1.0, 10.0, 100.0, 1000.0)
"""Of transfers; 1: no softmax action selection (Lamelas 6.5)."""

CURRICULA: Final = (
    ("early", "middle", "late"),
    ("late", "early", "middle"),
    ("early", "late", "middle"),
    ("late", "middle", "early"),
)
