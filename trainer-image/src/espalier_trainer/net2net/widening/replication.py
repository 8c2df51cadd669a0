"""Tensor arithmetic of widening: which old channel each new one copies, and its share of the outgoing weights.

Source: Chen, Goodfellow, Shlens, "Net2Net" (2016), section 2.2. A wider layer has the old units and random copies of
them (equation 4's map g); incoming weights are copied, outgoing weights divided among the copies (equation 6) so
that their sum is unchanged. The paper divides equally; with deterministic training the copies then stay equal forever.
Here the shares differ (Wang et al., "LEMON", 2024), which needs no noise and keeps the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_UNIT = 2.0**-20
"""Shares are multiples of it: they are exact in float32 and sum to exactly 1, so each product is rounded once."""


@dataclass(frozen=True, eq=False)
class Replication:
    """A widening of `width` channels: for each new channel the old one that it copies, and its share."""

    width: int
    source: Tensor
    """int64; the map g."""
    share: Tensor
    """float64; the shares of one old channel's copies sum to 1, and no two of them are equal."""

    def __len__(self) -> int:
        return len(self.source)


def replicate(width: int, new_width: int, *, blocks: int = 1, even: bool = False, seed: int) -> Replication:
    """Return a random widening, the same for the same seed on every machine.

    `blocks` divides the channels into that many equal parts, each of which copies only its own channels. `even` repeats
    every channel equally often, with adjacent copies, and so needs a multiple of `width`.
    """
    generator = torch.Generator().manual_seed(seed)
    if even:
        source = torch.arange(width).repeat_interleave(new_width // width)
    else:
        part, new_part = width // blocks, new_width // blocks
        kept = torch.arange(part).expand(blocks, part)
        drawn = torch.randint(part, (blocks, new_part - part), generator=generator)
        source = (torch.cat([kept, drawn], 1) + part * torch.arange(blocks)[:, None]).flatten()
    return Replication(width, source, _shares(source, width, generator))


def _shares(source: Tensor, width: int, generator: torch.Generator) -> Tensor:
    copies = torch.bincount(source, minlength=width)
    order = torch.argsort(source, stable=True)
    first = torch.cumsum(copies, 0) - copies
    rank = torch.empty_like(source)
    rank[order] = torch.arange(len(source)) - first[source[order]]
    jitter = torch.rand(len(source), generator=generator, dtype=torch.float64)
    # Ranks keep the copies of a channel apart by a sixth of their mean at least, were there only two.
    weight = 0.5 + (rank + 0.5 * jitter) / copies[source]
    total = torch.zeros(width, dtype=torch.float64).index_add_(0, source, weight)
    share = torch.floor(weight / total[source] / _UNIT) * _UNIT
    rest = 1 - torch.zeros(width, dtype=torch.float64).index_add_(0, source, share)
    last = rank == copies[source] - 1
    share[last] += rest[source[last]]
    return share


def gathered(values: Tensor, dim: int, index: Tensor, factor: Tensor | None = None, groups: int = 1) -> Tensor:
    """Return `values` with entry `index[k]` along `dim` at place k, times `factor[k]`.

    With `groups`, dimension 0 is in that many parts, and part b is made of the b-th part of `index` alone, whose
    entries lie in the b-th part of the whole axis (a grouped convolution's inputs).
    """
    exact = torch.promote_types(values.dtype, torch.float32)
    index = index.to(values.device)
    scale = None if factor is None else factor.to(values.device, exact)
    length = values.shape[dim]
    parts = []
    for number, rows in enumerate(values.chunk(groups) if groups > 1 else [values]):
        own = slice(number * len(index) // groups, (number + 1) * len(index) // groups)
        part = rows.index_select(dim, index[own] - number * length)
        if scale is not None:
            shape = [1] * part.dim()
            shape[dim] = -1
            wanted = scale[own].view(shape)
            part = part.mul_(wanted) if part.dtype == exact else (part.to(exact) * wanted).to(part.dtype)
        parts.append(part)
    result = parts[0] if groups == 1 else torch.cat(parts)
    if values.dim() == 4 and not values.is_contiguous() and values.is_contiguous(memory_format=torch.channels_last):
        return result.contiguous(memory_format=torch.channels_last)
    return result


def along(parts: Sequence[tuple[int, int, Replication | None]]) -> tuple[Tensor, Tensor]:
    """Return index and share of an axis made of parts `(channels, repeat, replication)`, one after the other."""
    indices, shares, offset = [], [], 0
    for channels, repeat, replication in parts:
        source = torch.arange(channels) if replication is None else replication.source
        share = torch.ones(channels, dtype=torch.float64) if replication is None else replication.share
        indices.append((offset + source[:, None] * repeat + torch.arange(repeat)).flatten())
        shares.append(share.repeat_interleave(repeat))
        offset += channels * repeat
    return torch.cat(indices), torch.cat(shares)
