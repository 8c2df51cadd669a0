"""Adding blocks as a growth operation: one `add_block`."""

from __future__ import annotations

from typing import Literal, Self

from torch import nn
from torch.optim import Optimizer

from espalier_core.growth.architecture import Architecture
from espalier_core.growth.block import ADD_BLOCK, owner_of
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.block.points import add_block, tried_places, untried_places
from espalier_trainer.net2net.block.trial import block_point
from espalier_trainer.net2net.block.unfolding import advance, unfolding
from espalier_trainer.net2net.blocks import STACK
from espalier_trainer.net2net.history import GrowthStep, Traced
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.optimizer import grow_optimizer


class BlockAdded(GrowthStep):
    """One `add_block`."""

    kind: Literal["BlockAdded"] = "BlockAdded"
    run: str
    insertion: Insertion = Insertion.EXACT

    @classmethod
    def described(cls, traced: Traced, architecture: Architecture, before: Architecture | None) -> Architecture:
        """Return the description with its runs of blocks; see `GrowthStep.described`.

        Each run is tried on values, unless `before` lists the runs that passed. Groups of channels within one block of
        a run are left out: widening one would make the blocks unequal.
        """
        whole = traced.insertion.whole
        if before is None:
            places = list(tried_places(traced.model, traced.graph, traced.example_input, whole=whole).found)
        else:
            known = {point.id: place for place, point in enumerate(before.blocks or ())}
            found = untried_places(traced.model, traced.graph, traced.example_input, whole=whole)
            places = sorted((one for one in found if one.id in known), key=lambda one: known[one.id])
        update: dict[str, object] = {"blocks": tuple(block_point(place, whole=whole) for place in places)}
        channels = architecture.channels
        if channels is not None and before is None:
            blocks = [block for place in places for block in place.run.blocks]
            update["channels"] = channels.without(
                {
                    group.id
                    for group in channels.groups
                    if any(all(owner_of(name, (block,)) for name in group.carriers) for block in blocks)
                }
            )
        return architecture.model_copy(update=update)

    @classmethod
    def planned(cls, action: Action, architecture: Architecture, insertion: Insertion, seed: int) -> Self:
        """Return the `add_block` at the action's run."""
        return cls(run=str(action.target), insertion=action.insertion or insertion)

    @property
    def action(self) -> Action:
        """`AddBlock` with the run."""
        return Action(kind=ADD_BLOCK.name, target=self.run)

    def again(self, model: nn.Module, example_input: ExampleInput) -> nn.Module:
        """Return the grown copy; raises `GrowthError` as `add_block` does."""
        return add_block(model, self.run, example_input, self.insertion)

    @property
    def gradual(self) -> str:
        """The gates of all runs, if this one unfolds; see `GrowthStep.gradual`."""
        return "gates" if self.insertion is Insertion.UNFOLD else ""

    def unfolds(self, model: nn.Module) -> bool:
        """Return whether a run of the model is unfolding; see `GrowthStep.unfolds`."""
        return self.insertion is Insertion.UNFOLD and bool(unfolding(model))

    def holds_up(self, model: nn.Module, action: Action) -> bool:
        """Return whether an action has to wait for this run to unfold: any except adding blocks to other runs."""
        if self.insertion is not Insertion.UNFOLD or not (blocks := unfolding(model)):
            return False
        return action.kind != ADD_BLOCK.name or action.target in blocks

    def advance(self, model: nn.Module, used: float) -> None:
        """Unfold the run further; see `GrowthStep.advance`."""
        if self.insertion is Insertion.UNFOLD:
            advance(model, used)

    def grown(self, model: nn.Module, optimizer: Optimizer, example_input: ExampleInput) -> tuple[nn.Module, Optimizer]:
        """Return the grown copy and its optimizer; see `GrowthStep.grown`."""
        longer = self.again(model, example_input)
        return longer, grow_optimizer(optimizer, model, longer)


def blocks_of(architecture: Architecture) -> tuple[tuple[BlockAdded, ...], bool]:
    """Return the steps that added the blocks in a description, and whether layers had been grown in them before."""
    steps: list[BlockAdded] = []
    late = False
    for point in architecture.blocks or ():
        times = point.grown
        if point.whole and point.grown:  # each doubled the run
            times = (len(point.copied) // (len(point.copied) - point.grown)).bit_length() - 1
        insertion = Insertion.SCALED if point.whole else Insertion.EXACT
        steps += [BlockAdded(run=point.id, insertion=insertion)] * times
        new = tuple(f"{point.stem}{point.number - 1 - place}." for place in range(point.grown))
        late = late or any(f".{STACK}." in layer.name and layer.name.startswith(new) for layer in architecture.layers)
    return tuple(steps), late
