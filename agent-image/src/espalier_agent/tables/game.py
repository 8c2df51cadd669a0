"""Outcome tables as tensors, on which learners play many episodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor, nn

from espalier_agent.policies.network import NetworkConfig, PolicyNetwork, masked_log_probabilities
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import DecisionTree, TableError, Transitions
from espalier_core.growth import operation
from espalier_core.types.advice import ActionColumns
from espalier_core.types.outcomes import reward as paper_return


class Returns(StrEnum):
    """The return of a final accuracy."""

    PAPER = "paper"
    """Equation 2, 100·tan(a·π/2)."""
    STANDARDISED = "standardised"
    """Equation 2, standardised over the table's sequences, so that tables have equal weight."""


def returns_of(accuracies: Sequence[float], returns: Returns) -> Tensor:
    """Return the returns of one table's sequences from their final accuracies, in float64."""
    found = torch.tensor([paper_return(accuracy) for accuracy in accuracies], dtype=torch.float64)
    if returns is Returns.STANDARDISED:
        found = (found - found.mean()) / found.std(correction=0).clamp_min(1e-12)
    return found


def outputs_of(tree: DecisionTree, outputs: ActionColumns) -> list[int]:
    """Return a network's output for each of a table's actions; raise `TableError` if it has none."""
    found = outputs.of(tree.states[0].architecture, tree.actions)
    missing = [action for action, place in zip(tree.actions, found, strict=True) if place is None]
    if missing:
        counts = " and ".join(f"{count} for {operation(name).targets_are}" for name, count in outputs.counts.items())
        raise TableError(f"table {tree.name}: the network has no output for {missing[0]}; it has {counts}")
    return [place for place in found if place is not None]


class Game:
    """A decision tree as tensors: all states are evaluated at once, and episodes walk over the result.

    States that share an architecture share its encoding, so a table with 21 states needs 10 passes of the encoder.
    """

    def __init__(self, tree: DecisionTree, vocabulary: Vocabulary, config: NetworkConfig, returns: Returns) -> None:
        self.tree = tree
        distinct = {state.architecture.fingerprint: state.architecture for state in tree.states}
        place = {fingerprint: index for index, fingerprint in enumerate(distinct)}
        self.architectures = tuple(distinct.values())
        """The distinct models."""
        with torch.device("meta"):
            reader = PolicyNetwork.of(config)
        self.prepared = reader.prepare(self.architectures, vocabulary)
        self._outputs = torch.tensor(outputs_of(tree, reader.outputs(self.prepared)))
        self.models = torch.tensor([place[state.architecture.fingerprint] for state in tree.states])
        """Index of each state's model among them."""
        self.time_left_s = torch.tensor([state.time_left_s for state in tree.states], dtype=torch.float64)
        self.time_budget_s = torch.tensor([state.time_budget_s for state in tree.states], dtype=torch.float64)
        self.next_states = torch.tensor(tree.next_states)
        """(states, actions): the next state; after the last decision the index of the sequence."""
        self.legal = torch.ones(self.next_states.shape, dtype=torch.bool)
        """(states, actions): all true, as a table has every action in all of its states."""
        self.paths = torch.from_numpy(Transitions.of([tree]).paths())
        """(sequences, decisions): index of each decision's probability in (states · actions)."""
        self.accuracies = torch.tensor(tree.accuracies, dtype=torch.float64)
        """(sequences,)."""
        self.returns = returns_of(tree.accuracies, returns)
        """(sequences,): the return of each."""

    def logits(self, network: PolicyNetwork, shift: float = 0.0) -> Tensor:
        """Return the logits of the table's own actions in all its states, (states, actions).

        `shift` moves all times left by a share of the budget.
        """
        left = self.time_left_s + shift * self.time_budget_s
        return network.logits(self.prepared, self.models, left, self.time_budget_s)[:, self._outputs]

    def log_probabilities(self, network: PolicyNetwork, temperature: float = 1.0, shift: float = 0.0) -> Tensor:
        """Return the log probabilities of the table's actions in all its states, (states, actions)."""
        return masked_log_probabilities(self.logits(network, shift), self.legal, temperature)

    def play(self, log_probabilities: Tensor, episodes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Play episodes by the probabilities; return P (episodes, decisions) and each episode's sequence index."""
        probabilities = log_probabilities.detach().exp()
        at = torch.zeros(episodes, dtype=torch.long)
        recorded = []
        for _ in range(self.tree.decisions):
            action = torch.multinomial(probabilities[at], 1, generator=generator).squeeze(1)
            recorded.append(log_probabilities[at, action])
            at = self.next_states[at, action]
        return torch.stack(recorded, dim=1), at

    def count(self, log_probabilities: Tensor, episodes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Play episodes; return P (sequences, decisions) and the number of episodes of each sequence, (sequences,).

        The distribution is the same as of `play`, which walks (a test): an episode is a sequence drawn by its
        probability, the product over its actions. It pays if episodes outnumber sequences.
        """
        recorded = log_probabilities.flatten()[self.paths]
        probabilities = recorded.detach().double().sum(dim=1).exp()
        drawn = torch.multinomial(probabilities, episodes, replacement=True, generator=generator)
        return recorded, torch.bincount(drawn, minlength=len(probabilities))


class Games:
    """Several games as one: all states of all tables in one pass, and every sequence by its exact probability.

    Models that tables share are encoded once. Actions are padded to the widest table, decisions to the longest.
    """

    def __init__(self, games: Sequence[Game], network: PolicyNetwork, vocabulary: Vocabulary) -> None:
        self.games = tuple(games)
        distinct = {model.fingerprint: model for game in games for model in game.architectures}
        place = {fingerprint: index for index, fingerprint in enumerate(distinct)}
        self.prepared = network.prepare(tuple(distinct.values()), vocabulary)
        models = [torch.tensor([place[model.fingerprint] for model in game.architectures]) for game in games]
        self.models = torch.cat([found[game.models] for found, game in zip(models, games, strict=True)])
        self.time_left_s = torch.cat([game.time_left_s for game in games])
        self.time_budget_s = torch.cat([game.time_budget_s for game in games])
        self.transitions = Transitions.of([game.tree for game in games])
        states, widest = self.transitions.states, self.transitions.next_states.shape[1]
        self.game_of_state = torch.from_numpy(self.transitions.table_of[:states])
        self.legal = torch.cat([nn.functional.pad(game.legal, (0, widest - game.legal.shape[1])) for game in games])
        outputs = network.outputs(self.prepared)
        rows = [outputs_of(game.tree, outputs) for game in games]
        # Padding reads the last output, whose value is not used.
        padded = [torch.tensor(row + [outputs.width - 1] * (widest - len(row))) for row in rows]
        self._outputs = torch.cat(
            [row.expand(len(game.models), widest) for row, game in zip(padded, games, strict=True)]
        )
        self.paths = torch.from_numpy(self.transitions.paths())
        """(sequences of all tables, decisions): index of each decision's probability in (states · actions)."""
        self.game_of_sequence = torch.from_numpy(self.transitions.table_of[states:])
        self.returns = torch.cat([game.returns for game in games])
        self.accuracies = torch.cat([game.accuracies for game in games])
        self.decisions = torch.tensor([game.tree.decisions for game in games], dtype=torch.float64)

    def logits(self, network: PolicyNetwork, shifts: Tensor | None = None) -> Tensor:
        """Return the logits of all actions in all states, (states, actions); those of padding are meaningless.

        `shifts` (games,) moves the times left of each table by a share of the budget.
        """
        left = self.time_left_s
        if shifts is not None:
            left = left + shifts[self.game_of_state] * self.time_budget_s
        return network.logits(self.prepared, self.models, left, self.time_budget_s).gather(1, self._outputs)

    def log_probabilities(
        self, network: PolicyNetwork, temperature: float = 1.0, shifts: Tensor | None = None
    ) -> Tensor:
        """Return the log probabilities of all actions in all states, (states, actions); -inf for padding."""
        return masked_log_probabilities(self.logits(network, shifts), self.legal, temperature)

    def of_sequences(self, log_probabilities: Tensor) -> Tensor:
        """Return the log probability of each sequence of each table, (sequences,)."""
        flat = torch.cat([log_probabilities.flatten(), log_probabilities.new_zeros(1)])
        return flat[self.paths].sum(dim=1)

    def mean_by_game(self, probabilities: Tensor, values: Tensor) -> Tensor:
        """Return Σ p·v over each table's sequences, (games,): an exact expectation."""
        weighted = probabilities * values.to(probabilities.dtype)
        return weighted.new_zeros(len(self.games)).index_add(0, self.game_of_sequence, weighted)

    def soft_best(self, entropy: float) -> Tensor:
        """Return exp(R / entropy) over each table's sequences, normalised, (sequences,).

        Among all distributions, this one maximises expected return plus `entropy` times its entropy.
        """
        scaled = self.returns / entropy
        highest = scaled.new_full((len(self.games),), -torch.inf)
        highest = highest.scatter_reduce(0, self.game_of_sequence, scaled, "amax")
        weights = (scaled - highest[self.game_of_sequence]).exp()
        sums = weights.new_zeros(len(self.games)).index_add(0, self.game_of_sequence, weights)
        return (weights / sums[self.game_of_sequence]).float()
