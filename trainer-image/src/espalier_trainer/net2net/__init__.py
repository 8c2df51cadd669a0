"""Function-preserving growth (Net2Net, Chen et al. 2016): add layers to a network without changing what it computes.

points = growth_points(model, example_input)
grown = deepen(model, points[0].id, example_input)      # same outputs, in eval and in train mode
optimizer = grow_optimizer(optimizer, model, grown)     # moments of what was kept are kept
"""

from espalier_api.architecture import GrowthError, GrowthPoint
from espalier_api.job import Insertion

from espalier_trainer.net2net.blocks import DeepenBlock

__all__ = ["DeepenBlock", "GrowthError", "GrowthPoint", "Insertion"]
