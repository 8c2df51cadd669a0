"""A split of a text as windows of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from espalier_trainer.errors import DatasetError


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Windows of `context` tokens, each with the tokens that follow; `windows` of them are an epoch.

    The windows of an epoch are spread evenly over the text. In training each batch moves all of its windows by one
    random distance, so that every place of the text comes up; in evaluation they stay where they are.
    """

    tokens: Tensor
    """All of the text, int32 [L]."""
    context: int
    windows: int
    characters_per_token: float = 1.0
    """Of this text: what turns bits per token into bits per character."""

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.context:
            raise DatasetError(
                f"training.dataset.options.context: is {self.context}, and a split of the text has {len(self.tokens)} "
                "tokens; a window and the token after it must fit: use a smaller context or more text"
            )

    def __len__(self) -> int:
        return self.windows

    def batch(self, indices: Tensor, chance: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        """Return (tokens [N, context], the tokens that follow each [N, context]), int64."""
        places = len(self.tokens) - self.context  # where a window can begin
        moved = 0 if chance is None else int(chance.integers(places))
        starts = (indices.to(self.tokens.device) * places // self.windows + moved) % places
        within = torch.arange(self.context + 1, device=self.tokens.device)
        picked = self.tokens[starts[:, None] + within].long()
        return picked[:, :-1], picked[:, 1:]

    def to(self, device: torch.device) -> TokenSource:
        """Return the same split on `device`."""
        return replace(self, tokens=self.tokens.to(device))
