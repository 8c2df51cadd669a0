"""Function-preserving growth (Net2Net, Chen et al. 2016): add layers to a network without changing what it computes.

    points = growth_points(model, example_input)
    grown = deepen(model, points[0].id, example_input)      # same outputs, in eval and in train mode
    optimizer = grow_optimizer(optimizer, model, grown)     # existing parameters keep their moments

Both run the model once to record its operations (`trace`); points are found and grown in `deepening`.

    groups = widening_groups(model, example_input)
    widening = plan_widening(model, groups[0], 2 * groups[0].width, example_input, seed=7)
    wider = widened(model, widening)                        # same outputs; `widen` does both
    optimizer = widen_optimizer(optimizer, model, wider, widening)

Groups of channels are found and widened in `widening`.

    runs = block_points(model, example_input)
    longer = add_block(model, runs[0].id, example_input)    # one more whole residual block, same outputs
    optimizer = grow_optimizer(optimizer, model, longer)

Runs of equal residual blocks are found and continued in `block`.

`history` records the growth steps of a model and can replay them in order.
"""

from espalier_core.growth.architecture import GrowthError, GrowthPoint
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.block.points import add_block, block_points, refused_blocks
from espalier_trainer.net2net.block.step import BlockAdded
from espalier_trainer.net2net.blocks import DeepenBlock
from espalier_trainer.net2net.deepening.deepen import Deepened, deepen, growth_points, rebuild, refused_deepenings
from espalier_trainer.net2net.description import load_grown
from espalier_trainer.net2net.history import Growth, replay
from espalier_trainer.net2net.in_place import grow_in_place
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.optimizer import grow_optimizer
from espalier_trainer.net2net.refusals import Refusal
from espalier_trainer.net2net.widening.groups import WideningGroup
from espalier_trainer.net2net.widening.widen import (
    Widened,
    Widening,
    plan_widening,
    refused_widenings,
    widen,
    widen_optimizer,
    widened,
    widening_groups,
)

__all__ = [
    "BlockAdded",
    "DeepenBlock",
    "Deepened",
    "ExampleInput",
    "Growth",
    "GrowthError",
    "GrowthPoint",
    "Insertion",
    "Refusal",
    "Widened",
    "Widening",
    "WideningGroup",
    "add_block",
    "block_points",
    "deepen",
    "grow_in_place",
    "grow_optimizer",
    "growth_points",
    "load_grown",
    "plan_widening",
    "rebuild",
    "refused_blocks",
    "refused_deepenings",
    "refused_widenings",
    "replay",
    "widen",
    "widen_optimizer",
    "widened",
    "widening_groups",
]
