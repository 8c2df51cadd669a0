"""Function-preserving growth (Net2Net, Chen et al. 2016): add layers to a network without changing what it computes.

    points = growth_points(model, example_input)
    grown = deepen(model, points[0].id, example_input)      # same outputs, in eval and in train mode
    optimizer = grow_optimizer(optimizer, model, grown)     # moments of what was kept are kept

Found by running the model once (`tracing`, `recorder` → `graph`), judged in `points`, tried in `trial`, built in
`insertion` with the values of `identity`, put in its place by `blocks` and `deepen`.
"""

from espalier_api.architecture import GrowthError, GrowthPoint
from espalier_api.job import Insertion
from espalier_trainer.net2net.blocks import DeepenBlock
from espalier_trainer.net2net.deepen import deepen, growth_points
from espalier_trainer.net2net.optimizer import grow_optimizer
from espalier_trainer.net2net.rebuild import rebuild
from espalier_trainer.net2net.tracing import ExampleInput

__all__ = [
    "DeepenBlock",
    "ExampleInput",
    "GrowthError",
    "GrowthPoint",
    "Insertion",
    "deepen",
    "grow_optimizer",
    "growth_points",
    "rebuild",
]
