"""The policy: the choice of rule and place from messages along the edges of the graph, and the expected return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from espalier_agent.policies.graph_encoder import STATE_SIZE
from espalier_lab.rewriting.learned.encoding import WHOLE_SIZE, GraphEncoder, pooled
from espalier_lab.rewriting.learned.environment import STOP
from espalier_lab.rewriting.learned.learnable import EAGER, LearnablePolicy, Scores
from espalier_lab.rewriting.learned.seen import Batch, GraphObservation

HIDDEN: Final = 64
RULE_SIZE: Final = 16
"""Size of a rule's learnt embedding."""


class RewritePolicy(GraphEncoder, LearnablePolicy[GraphObservation]):
    """Two heads over one encoder: the rule (or to stop), and the location given the rule; and a critic.

    No parameter belongs to a place, so a policy serves graphs of any size. A rule that was not met while learning is
    represented by the mean of the others.
    """

    met: Tensor

    def __init__(self) -> None:
        """Initialise with torch's defaults from the global generator."""
        super().__init__()
        self.rules = nn.Embedding(STOP, RULE_SIZE)
        self.rule_head = _head(WHOLE_SIZE + 2 * STATE_SIZE + RULE_SIZE)
        self.stop_head = _head(WHOLE_SIZE)
        self.place_head = _head(STATE_SIZE + RULE_SIZE + WHOLE_SIZE)
        self.critic = _head(WHOLE_SIZE)
        self.register_buffer("met", torch.zeros(STOP, dtype=torch.bool))

    def read(self, observation: Any, info: dict[str, Any]) -> GraphObservation:
        """Return a graph without its padding."""
        return GraphObservation.of(observation, info)

    def scores(self, seen: Sequence[GraphObservation]) -> Scores:
        """Score the actions of graphs."""
        found: Scores = self(Batch.of(seen))
        return found

    def meet(self, seen: GraphObservation) -> None:
        """Record the rules that apply to a graph."""
        self.met[seen.rules] = True

    def forward(self, batch: Batch) -> Scores:
        """Score the actions of graphs."""
        count = len(batch.whole)
        states, whole = self.encoded(batch)
        rules = self._rules()[batch.pair_rules]
        at = states[batch.anchors]
        pair_count = len(batch.pair_graphs)
        there = pooled(at, batch.of_pair, pair_count)
        pair_scores = self.rule_head(torch.cat([whole[batch.pair_graphs], there, rules], dim=1)).squeeze(1)
        stop = self.stop_head(whole).squeeze(1) - EAGER
        by_rule = torch.full((count, STOP + 1), -torch.inf)
        by_rule[:, STOP] = stop
        by_rule[batch.pair_graphs, batch.pair_rules] = pair_scores
        rule_logs = torch.log_softmax(by_rule, dim=1)
        match_graphs = batch.pair_graphs[batch.of_pair]
        place = self.place_head(torch.cat([at, rules[batch.of_pair], whole[match_graphs]], dim=1)).squeeze(1)
        place_logs = _log_softmax_within(place, batch.of_pair, pair_count)
        width = 1 + (int(batch.columns.max()) if len(batch.columns) else 0)
        logs = torch.full((count, width), -torch.inf)
        logs[:, 0] = rule_logs[:, STOP]
        logs[match_graphs, batch.columns] = rule_logs[match_graphs, batch.pair_rules[batch.of_pair]] + place_logs
        return Scores(logs, self.critic(whole).squeeze(1))

    def _rules(self) -> Tensor:
        """Return the embedding of each rule (rules, `RULE_SIZE`)."""
        if not bool(self.met.any()):
            return self.rules.weight
        mean = self.rules.weight[self.met].mean(dim=0)
        return torch.where(self.met[:, None], self.rules.weight, mean)


def _head(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def _log_softmax_within(scores: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the log softmax of scores within each group."""
    most = torch.zeros(count).scatter_reduce(0, groups, scores.detach(), "amax", include_self=False)
    moved = scores - most[groups]
    total = torch.zeros(count).index_add(0, groups, moved.exp())
    return moved - total.log()[groups]
