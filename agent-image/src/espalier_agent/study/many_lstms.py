"""Many LSTMs at once, each with weights of its own, and their gradient written out.

Left to autograd, a step of these small LSTMs is a dozen small operations with as many again, and copies, on the way
back; written out it is six, and the weights' gradient is one product over all steps. An update takes half the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def lstms(given: Tensor, of_hidden: Tensor) -> Tensor:
    """Return the hidden states after each step, (steps, runs, models, hidden), as `nn.LSTM` does from zero states.

    `given`: what inputs and biases add to the gates, (steps, runs, models, 4 hidden), in PyTorch's order: input,
    forget, cell, output. `of_hidden`: (runs, hidden, 4 hidden).
    """
    found: Tensor = _Lstms.apply(given, of_hidden)
    return found


class _Lstms(torch.autograd.Function):
    """i, f, o = σ(·), g = tanh(·); c' = f c + i g; h' = o tanh(c')  (the equations in the docstring of `nn.LSTM`)."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, of_hidden: Tensor) -> Tensor:
        steps, runs, models, _ = given.shape
        size = of_hidden.shape[1]
        gates = torch.empty_like(given)
        hidden, cell = given.new_zeros(2, steps + 1, runs, models, size)
        squashed = given.new_empty(steps, runs, models, size)
        for step in range(steps):
            at = torch.baddbmm(given[step], hidden[step], of_hidden, out=gates[step])
            at[..., : 2 * size].sigmoid_()
            at[..., 2 * size : 3 * size].tanh_()
            at[..., 3 * size :].sigmoid_()
            entering, forgetting, candidate, leaving = at.chunk(4, dim=2)
            torch.mul(forgetting, cell[step], out=cell[step + 1]).addcmul_(entering, candidate)
            torch.tanh(cell[step + 1], out=squashed[step])
            torch.mul(leaving, squashed[step], out=hidden[step + 1])
        ctx.save_for_backward(gates, hidden, cell, squashed, of_hidden)
        found: Tensor = hidden[1:]
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, wanted: Tensor) -> tuple[Tensor, Tensor]:
        gates, hidden, cell, squashed, of_hidden = ctx.saved_tensors
        steps, runs, models, size = squashed.shape
        entering, forgetting, candidate, leaving = gates.chunk(4, dim=3)
        # First what a change of the cell (of the hidden state, for the last) makes of each gate's sum, of all steps at
        # once; then, in its place, the gradient of these sums.
        of_gates = gates.new_empty(steps, runs, models, 4, size)
        torch.mul(gates, gates, out=of_gates.view_as(gates))
        of_gates.view_as(gates).neg_().add_(gates)  # σ' = σ - σ²
        of_gates[..., 2, :] = 1 - candidate.square()
        of_gates[..., 0, :].mul_(candidate)
        of_gates[..., 1, :].mul_(cell[:-1])
        of_gates[..., 2, :].mul_(entering)
        of_gates[..., 3, :].mul_(squashed)
        to_cell = squashed.square().neg_().add_(1).mul_(leaving)
        of_cell = torch.zeros_like(squashed[0])
        back = of_hidden.transpose(1, 2)
        at = wanted[-1]
        for step in reversed(range(steps)):
            of_cell.addcmul_(at, to_cell[step])
            of_gates[step, :, :, :3].mul_(of_cell[:, :, None])
            of_gates[step, :, :, 3].mul_(at)
            of_cell.mul_(forgetting[step])
            if step:
                at = torch.baddbmm(wanted[step - 1], of_gates[step].view(runs, models, 4 * size), back)
        before = hidden[:-1].permute(1, 3, 0, 2).reshape(runs, size, steps * models)
        after = of_gates.permute(1, 0, 2, 3, 4).reshape(runs, steps * models, 4 * size)
        return of_gates.view(steps, runs, models, 4 * size), torch.bmm(before, after)
