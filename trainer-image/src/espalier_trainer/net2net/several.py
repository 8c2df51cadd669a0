"""Several optimizers over the parameters of one model, as one: a GAN's, or one for matrices and one for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class Several(Optimizer):
    """Shows the groups and the state of its members. They keep both: a user goes on to step each member."""

    def __init__(self, members: Sequence[Optimizer]) -> None:
        # Without that of the class, which would make groups and a state of its own.
        self.members = tuple(members)
        self.defaults: dict[str, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all members, in order; the dictionaries are the members' own."""
        return [group for member in self.members for group in member.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """The states of all members by parameter; the dictionary is a copy, its values are the members' own."""
        return {parameter: state for member in self.members for parameter, state in member.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all members."""
        for member in self.members:
            member.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step all members."""
        for member in self.members:
            member.step()

    def each(self, function: Callable[[Optimizer], Optimizer]) -> Several:
        """Return the results of `function` for the members, as one."""
        return Several([function(member) for member in self.members])


def members_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Return the members of `Several`, or the optimizer itself."""
    return optimizer.members if isinstance(optimizer, Several) else (optimizer,)
