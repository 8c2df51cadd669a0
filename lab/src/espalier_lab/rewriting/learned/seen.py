"""A policy's input from graphs: observations without their padding, alone and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier_lab.rewriting.learned.environment import STOP, Observation
from espalier_lab.rewriting.learned.features import FEATURES

NODE_FEATURES: Final = FEATURES + 1
"""The environment's features, and the root of the share of the cost: most shares are a percent or less."""

WHOLE_FEATURES: Final = 3
"""Number of features of a graph: logarithms of its relative cost, its nodes and its matches."""


@dataclass(frozen=True, slots=True)
class GraphObservation:
    """One graph with A matches. An action is the number of a match, from 1 on; 0 stops."""

    nodes: NDArray[np.float32]
    """(nodes, `FEATURES`)."""
    edges: NDArray[np.int64]
    """(2, edges)."""
    rules: NDArray[np.int64]
    """(A,)."""
    places: NDArray[np.int64]
    """(A,): the location of each match among those of its rule."""
    anchors: NDArray[np.int64]
    """(A,): the first node of each match."""

    @staticmethod
    def of(observation: Observation, info: dict[str, Any]) -> GraphObservation:
        """Return an observation without its padding."""
        nodes = observation["nodes"]
        edges = observation["edges"]
        rules, places = info["location_mask"][:STOP].nonzero()
        return GraphObservation(
            nodes=nodes[: np.count_nonzero(nodes.any(axis=1))].copy(),
            edges=edges[edges[:, 0] >= 0].T.astype(np.int64),
            rules=rules,
            places=places,
            anchors=observation["anchors"][rules, places].astype(np.int64),
        )

    def action(self, number: int) -> NDArray[np.int64]:
        """Return an action in the environment's form."""
        pair = (STOP, 0) if number == 0 else (self.rules[number - 1], self.places[number - 1])
        return np.array(pair, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """B graphs as one, with N nodes and A matches in all; G pairs of a graph and a rule that applies to it."""

    nodes: Tensor
    """(N, `NODE_FEATURES`)."""
    edges: Tensor
    """(2, E)."""
    graphs: Tensor
    """(N,): the graph of each node."""
    whole: Tensor
    """(B, `WHOLE_FEATURES`)."""
    anchors: Tensor
    """(A,): the node of each match."""
    of_pair: Tensor
    """(A,): the pair of each match."""
    pair_graphs: Tensor
    """(G,)."""
    pair_rules: Tensor
    """(G,)."""
    columns: Tensor
    """(A,): the number of each match's action in its graph."""

    @staticmethod
    def of(seen: Sequence[GraphObservation]) -> Batch:
        """Combine graphs; none may be empty."""
        firsts = np.cumsum([0, *(len(one.nodes) for one in seen)])
        shares = [one.nodes[:, -1].clip(min=0) for one in seen]
        matches = [len(one.rules) for one in seen]
        pairs = np.repeat(np.arange(len(seen)), matches) * STOP + np.concatenate([one.rules for one in seen])
        kept, of_pair = np.unique(pairs, return_inverse=True)
        nodes = np.concatenate([one.nodes for one in seen])
        numbers = [
            (np.log(share.sum() + 1e-9), np.log2(1 + len(share)) / 8, np.log2(1 + count) / 8)
            for share, count in zip(shares, matches, strict=True)
        ]
        return Batch(
            nodes=torch.from_numpy(np.concatenate([nodes, np.sqrt(np.concatenate(shares))[:, None]], axis=1)),
            edges=torch.from_numpy(
                np.concatenate([one.edges + first for one, first in zip(seen, firsts, strict=False)], axis=1)
            ),
            graphs=torch.from_numpy(np.repeat(np.arange(len(seen)), np.diff(firsts))),
            whole=torch.tensor(numbers, dtype=torch.float32),
            anchors=torch.from_numpy(
                np.concatenate([one.anchors + first for one, first in zip(seen, firsts, strict=False)])
            ),
            of_pair=torch.from_numpy(of_pair.reshape(-1)),
            pair_graphs=torch.from_numpy(kept // STOP),
            pair_rules=torch.from_numpy(kept % STOP),
            columns=torch.from_numpy(np.concatenate([np.arange(1, 1 + count) for count in matches])),
        )
