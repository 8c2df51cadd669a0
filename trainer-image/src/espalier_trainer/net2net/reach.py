"""What growth may add to that on which an output depends.

Nothing, with one exception: a receptive field may become larger where it is a window that moves with the output's
entry, and only to a side to which it already reaches as far as to the other. So a convolution after causal ones must
not look ahead, and a mask stays one; a window that reaches equally far to both sides may grow on both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from espalier_trainer.net2net.probe import Sample

_EVEN = 1 / 8
"""The sides count as equally long if they differ by at most this share of the window (even kernels, pooling)."""


def forbidden(before: Sequence[Sample], after: Sequence[Sample]) -> str | None:
    """Return the first new dependence that growth may not add, as text; None where there is none."""
    if [(one.output, one.shape, one.at, len(one.depends)) for one in before] != [
        (one.output, one.shape, one.at, len(one.depends)) for one in after
    ]:
        return "its outputs have other shapes"
    for output in dict.fromkeys(one.output for one in before):
        old = [one for one in before if one.output == output]
        new = [one for one in after if one.output == output]
        for source in range(len(old[0].depends)):
            found = _forbidden([one.depends[source] for one in old], [one.depends[source] for one in new], old)
            if found is not None:
                return found
    return None


def _forbidden(before: Sequence[Tensor], after: Sequence[Tensor], samples: Sequence[Sample]) -> str | None:
    open_sides: set[tuple[int, int]] | None = None
    for old, new, sample in zip(before, after, samples, strict=True):
        added = new & ~old
        if not added.any():
            continue
        where = f"the entry {sample.at} of an output of shape {sample.shape} would depend on the input's entry "
        if not old.any():
            return f"{where}{_first(added)}"
        if open_sides is None:
            open_sides = _open_sides(before, samples)
        inside = torch.ones_like(added)
        for axis in range(old.dim()):
            low, high = _extent(old, axis)
            index = torch.arange(old.shape[axis]).view([-1 if other == axis else 1 for other in range(old.dim())])
            for side, outside in ((0, index < low), (1, index > high)):
                beyond = added & outside
                if beyond.any() and (axis, side) not in open_sides:
                    return f"{where}{_first(beyond)}"
                inside &= ~outside
        # Between its ends a window may fill (dilated kernels); what no line of it crosses is not between them.
        filled = added & inside & ~(_between(old) if open_sides else torch.zeros_like(old))
        if filled.any():
            return f"{where}{_first(filled)}"
    return None


def _open_sides(depends: Sequence[Tensor], samples: Sequence[Sample]) -> set[tuple[int, int]]:
    """Return the axes and sides (0: before, 1: after) to which the windows may grow."""
    found: set[tuple[int, int]] = set()
    for axis, size in enumerate(depends[0].shape):
        for along, length in enumerate(samples[0].shape):
            if size < 2 or length < 2 or max(size, length) % min(size, length):
                continue
            if size != length and (axis != along or len(samples[0].shape) != depends[0].dim()):
                continue  # a strided axis is the same one only where it has the same place
            starts = [sample.at[along] * size // length for sample in samples]
            ends = [start + max(1, size // length) - 1 for start in starts]
            extents = [_extent(one, axis) for one in depends]
            before = [start - low for start, (low, _) in zip(starts, extents, strict=True)]
            beyond = [high - end for end, (_, high) in zip(ends, extents, strict=True)]
            slack = _EVEN * (max(before) + max(beyond))
            # Distances from both borders: after it, the axis is read from its end.
            if max(before) >= max(beyond) - slack and _moves(starts, before):
                found.add((axis, 0))
            if max(beyond) >= max(before) - slack and _moves([size - 1 - end for end in ends], beyond):
                found.add((axis, 1))
    return found


def _moves(distances: Sequence[int], reaches: Sequence[int]) -> bool:
    """Return whether a side of the window moves with the entry, given distances to the border and the reaches.

    Its reach is the same at entries apart, and shorter only where the border cuts it.
    """
    reach = max(reaches)
    tolerance = max(1, _EVEN * reach)
    whole = [distance for distance, one in zip(distances, reaches, strict=True) if one >= reach - tolerance]
    cut = all(distance < reach for distance, one in zip(distances, reaches, strict=True) if one < reach - tolerance)
    return reach > 0 and cut and max(whole) - min(whole) > 2 * tolerance


def _extent(depends: Tensor, axis: int) -> tuple[int, int]:
    others = [other for other in range(depends.dim()) if other != axis]
    line = depends.any(dim=others) if others else depends
    found = line.nonzero().flatten()
    return (int(found[0]), int(found[-1])) if len(found) else (0, -1)


def _between(depends: Tensor) -> Tensor:
    """Return the entries that lie between two others on a line along some axis."""
    found = torch.zeros_like(depends)
    for axis in range(depends.dim()):
        seen = depends.to(torch.int32)
        found |= (seen.cumsum(axis) > 0) & (seen.flip(axis).cumsum(axis).flip(axis) > 0)
    return found


def _first(added: Tensor) -> tuple[int, ...]:
    return tuple(int(index) for index in added.nonzero()[0])
