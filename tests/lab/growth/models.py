"""A file of cases, as a stranger would write it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

OPTIMIZER = {"name": "Adam", "learningRate": 0.02}


def table(count: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def values(count: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs, _ = table(count, seed)
    return inputs, inputs[:, :1] * inputs[:, 1:2]


class Tokens(nn.Module):
    """A recurrent layer and a head for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(5, 6)
        self.recurrent = nn.GRU(6, 6, batch_first=True)
        self.head, self.out = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.relu(self.head(self.recurrent(self.read(tokens))[0])))  # type: ignore[no-any-return]


def tokens(count: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randint(0, 5, (count, 6), generator=torch.Generator().manual_seed(seed))
    return inputs, inputs.roll(1, 1)


def cases() -> Iterator[dict[str, object]]:
    common = {"steps": 12, "batchSize": 16, "optimizer": OPTIMIZER}

    def splits(make: object) -> dict[str, object]:
        assert callable(make)
        return {"train": make(64, 0), "validation": make(32, 1), "test": make(48, 2)}

    yield {
        "name": "mlp/on a table",
        "family": "mlp",
        "module": lambda seed: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)),
        **splits(table),
        **common,
    }
    yield {"name": "linear", "family": "linear", "module": lambda seed: nn.Linear(4, 2), **splits(table), **common}
    yield {"name": "tokens", "family": "tokens", "module": lambda seed: Tokens(), **splits(tokens), **common}
    yield {
        "name": "values",
        "family": "values",
        "module": lambda seed: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)),
        **splits(values),
        **{**common, "optimizer": {"name": "SGD", "learningRate": 0.1}},
    }
