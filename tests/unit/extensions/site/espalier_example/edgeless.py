"""An encoder: the graph network without its edges, which knows the layers of a model and not how they are connected."""

from __future__ import annotations

from collections.abc import Sequence

from espalier_agent.policies.graph_encoder import GraphNetwork
from espalier_agent.policies.network import Prepared
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_core.growth.architecture import Architecture


class EdgelessNetwork(GraphNetwork):
    """Layers exchange no messages."""

    def prepare(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Turn models into graphs without edges."""
        prepared = super().prepare(architectures, vocabulary)
        return {**prepared, "edges": prepared["edges"][:, :0]}
