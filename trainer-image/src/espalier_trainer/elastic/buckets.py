"""Sum of gradients over all members in buckets, each sent as soon as the backward pass has computed it.

As in PyTorch's DistributedDataParallel (Li et al. 2020, "PyTorch Distributed", section 3.2). Its reducer cannot be
used: it belongs to one module and one process group, divides by the number of members, and has no way out for a member
that is out of memory. The last bucket also carries the figures of the step, so a small step is one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from espalier_trainer.elastic.group import Group, Sending
from espalier_trainer.measuring.gradients import squared_norm
from espalier_trainer.optimizers.building import laid_as

FIRST_BYTES: Final = 1 << 20
BUCKET_BYTES: Final = 25 << 20
"""Sizes as in DistributedDataParallel: a small first bucket, so that sending begins early."""


def cut(sizes: Sequence[int], first: int, others: int) -> list[list[int]]:
    """Return the indices into `sizes` (bytes) by bucket: the last index first, as its gradient is computed first.

    A bucket is closed once it has reached its size. There is at least one.
    """
    buckets: list[list[int]] = [[]]
    held, limit = 0, first
    for place in reversed(range(len(sizes))):
        if buckets[-1] and held >= limit:
            buckets.append([])
            held, limit = 0, others
        buckets[-1].append(place)
        held += sizes[place]
    return buckets


def _real(gradient: Tensor) -> Tensor:
    """Return a gradient as dense real numbers: a complex one as two in a last dimension."""
    if gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient


class Buckets:
    """Buffers through which the gradients of some parameters are exchanged, step after step.

    Numbers have 32 bits, or 64 if a parameter's have.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], figures: int, device: torch.device) -> None:
        """`figures` numbers follow the gradients of the last bucket."""
        self.parameters = tuple(parameters)
        self.figures = figures
        self.views: list[Tensor] = [torch.empty(0)] * len(self.parameters)
        """Destination of each parameter's gradient, in the form that `_real` returns."""
        self.bucket_of = [0] * len(self.parameters)
        self.flat: list[Tensor] = []
        self.counts: list[int] = []
        """Number of parameters in each bucket."""
        wide = any(parameter.dtype.to_real() == torch.float64 for parameter in self.parameters)
        self.dtype = torch.float64 if wide else torch.float32
        shapes = [_real(parameter.detach()).shape for parameter in self.parameters]
        places = cut([self.dtype.itemsize * shape.numel() for shape in shapes], FIRST_BYTES, BUCKET_BYTES)
        for number, bucket in enumerate(places):
            sizes = [shapes[place].numel() for place in bucket]
            more = figures if number == len(places) - 1 else 0
            flat = torch.zeros(sum(sizes) + more, dtype=self.dtype, device=device)
            for place, part in zip(bucket, torch.split(flat, [*sizes, more]), strict=False):
                self.views[place] = part.view(shapes[place])
                self.bucket_of[place] = number
            self.flat.append(flat)
            self.counts.append(len(bucket))

    def fits(self, parameters: Sequence[nn.Parameter], figures: int) -> bool:
        """Return whether the buckets are for these parameters and this number of figures."""
        return (
            figures == self.figures
            and len(parameters) == len(self.parameters)
            and all(mine is other for mine, other in zip(self.parameters, parameters, strict=True))
        )

    def sum_nothing(self, group: Group, figures: Sequence[float]) -> None:
        """Take part in an exchange with figures only, without gradients. Raises `GroupBrokenError`."""
        for flat in self.flat:
            flat.zero_()
        self.flat[-1][-self.figures : -1] = torch.tensor(figures, dtype=self.dtype, device=group.device)
        sent = [group.sending(flat) for flat in self.flat]
        group.sent()
        for sending in sent:
            sending.wait()
        if self.flat[-1][-1]:
            for view in self.views:
                group.all_reduce(torch.zeros_like(view))

    def gradients(self, number: int) -> Tensor:
        """Return the gradients of a bucket, -1 for the last, without the figures after them."""
        flat = self.flat[number]
        return flat[: len(flat) - self.figures] if flat is self.flat[-1] else flat


class Exchange:
    """One step's exchange of the gradients of a module. All members send the same buckets, in the same order."""

    def __init__(
        self, module: nn.Module, group: Group, figures: int, *, weight: float = 1.0, measured: bool = False
    ) -> None:
        """Multiply this member's gradients by `weight`; with 0 they are ignored, even if not finite.

        `figures` numbers are sent with them. With `measured`, their squared norm is computed.
        """
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        buckets = group.buckets
        if buckets is None or not buckets.fits(parameters, figures + 1):
            group.buckets = None  # there may be no room for both
            buckets = group.buckets = Buckets(parameters, figures + 1, group.device)
        self._buckets, self._group = buckets, group
        self._weight, self._measured = weight, measured
        self._missing = list(buckets.counts)
        self._filled = [False] * len(parameters)
        self._late: dict[int, Tensor] = {}
        """Gradients that came after their bucket was sent: a backward pass within the backward pass (reentrant gradient
        checkpointing) can give a gradient in several parts."""
        self._sent: list[Sending] = []
        self.squared_norm = torch.zeros((), device=group.device)
        """Squared norm of this member's gradients, available once they are sent."""

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Send buckets as soon as the backward pass in the block has computed them; the last one is kept back.

        Earlier gradients are sent together with the pass's. The block must not use the group otherwise.
        Raises `GroupBrokenError`.
        """
        if len(self._buckets.flat) == 1 or not self._weight:
            yield
            return
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._ready, place))  # type: ignore[no-untyped-call]
            for place, parameter in enumerate(self._buckets.parameters)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def withdraw(self) -> None:
        """Send zeros from here on: this member's step has failed, and its earlier gradients will not be used."""
        self._weight = 0.0
        self._late.clear()

    def send_most(self) -> None:
        """Send buckets that the backward pass did not, with zeros for missing gradients; the last one is kept back."""
        buckets = self._buckets
        if self._weight:
            self._fill_rest()
        while len(self._sent) < len(buckets.flat) - 1:
            self._send()
        if not self._weight:
            buckets.gradients(-1).zero_()
        self._measure(-1)

    def sum(self, figures: Tensor) -> Tensor:
        """Give all parameters the sum of all members' gradients, and return the sum of the `figures`.

        Must follow `send_most`. Raises `GroupBrokenError`.
        """
        buckets = self._buckets
        carried = buckets.flat[-1][-buckets.figures :]
        carried[:-1] = figures
        if self._late:
            carried[-1] = float(len(self._late))
        else:
            carried[-1:].zero_()
        self._sent.append(self._group.sending(buckets.flat[-1]))
        self._group.sent()
        for sending in self._sent:
            sending.wait()
        if carried[-1]:
            self._sum_late()
        for parameter, view in zip(buckets.parameters, buckets.views, strict=True):
            parameter.grad = laid_as(_as_parameter(view, parameter), parameter)
        return carried[:-1]

    def squared_norm_of_sum(self) -> Tensor:
        """Return the squared norm of the summed gradients, after `sum`."""
        return torch.stack(
            [squared_norm(self._buckets.gradients(each)) for each in range(len(self._buckets.flat))]
        ).sum()

    # ---- within

    def _ready(self, place: int, parameter: Tensor) -> None:
        """Take the gradient of a parameter, and send the buckets that are complete."""
        buckets, came = self._buckets, parameter.grad
        parameter.grad = None  # its memory is reused for the next one
        number = buckets.bucket_of[place]
        if number < len(self._sent):
            if came is not None:
                late = _real(came.detach()).to(buckets.dtype) * self._weight
                self._late[place] = self._late[place] + late if place in self._late else late
            return
        self._fill(place, came)
        while len(self._sent) < len(buckets.flat) - 1 and not self._missing[len(self._sent)]:
            self._send()

    def _fill(self, place: int, came: Tensor | None) -> None:
        """Write a gradient into its bucket, or add it to an earlier part."""
        view = self._buckets.views[place]
        if self._filled[place]:
            if came is not None:
                view.add_(_real(came.detach()), alpha=self._weight)
            return
        self._filled[place] = True
        self._missing[self._buckets.bucket_of[place]] -= 1
        if came is None:
            view.zero_()
        else:
            view.copy_(_real(came.detach()))
            if self._weight != 1.0:
                view.mul_(self._weight)

    def _fill_rest(self) -> None:
        """Write all gradients that are not in their buckets yet, in one call: a small model has many small ones."""
        buckets = self._buckets
        views, came = [], []
        for place, (parameter, filled) in enumerate(zip(buckets.parameters, self._filled, strict=True)):
            if filled:
                continue
            if parameter.grad is None:
                self._fill(place, None)
            else:
                views.append(buckets.views[place])
                came.append(_real(parameter.grad))
                self._filled[place] = True
            parameter.grad = None
        if views:
            with torch.no_grad():
                torch._foreach_copy_(views, came)
                if self._weight != 1.0:
                    torch._foreach_mul_(views, self._weight)

    def _send(self) -> None:
        """Send the next bucket."""
        number = len(self._sent)
        if not self._weight:
            self._buckets.flat[number].zero_()
        self._measure(number)
        self._sent.append(self._group.sending(self._buckets.flat[number]))

    def _measure(self, number: int) -> None:
        if self._measured:
            self.squared_norm = self.squared_norm + squared_norm(self._buckets.gradients(number))

    def _sum_late(self) -> None:
        """Exchange gradients that came late at any member."""
        for place, view in enumerate(self._buckets.views):
            late = self._late.get(place)
            late = torch.zeros_like(view) if late is None else late
            self._group.all_reduce(late)
            view.add_(late)


def _as_parameter(view: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient in the type of its parameter. Real numbers of the right type are not copied."""
    numbers = view.to(parameter.dtype.to_real())
    if not parameter.is_complex():
        return numbers
    # In a bucket they may begin at an odd offset, where no complex number can start.
    return torch.view_as_complex(numbers.clone())
