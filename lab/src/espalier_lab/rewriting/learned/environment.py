"""Rewriting one model's computation graph as a Gymnasium environment, for anyone's learner."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from espalier_lab.illegal_actions import RAISE, IllegalActionError, checked, integer
from espalier_lab.rewriting.engine import OperatorCosts, RewritePlan, capture
from espalier_lab.rewriting.engine.matching import Match
from espalier_lab.rewriting.engine.rules import RULES
from espalier_lab.rewriting.engine.search import HORIZON, SearchState
from espalier_lab.rewriting.learned.features import FEATURES, Row, edges, is_shown, row
from espalier_lab.rewriting.learned.nets import NETS, Net

ENVIRONMENT_ID: Final = "espalier/Rewrites-v0"

STOP: Final = len(RULES)
"""The rule that ends an episode."""

LOCATIONS: Final = 64
"""Maximum number of places per rule; further ones are not offered."""

_ADDED: Final = 5
"""Maximum number of nodes by which one rewrite may enlarge a graph."""

PENALIZE: Final = "penalize"

FORBIDDEN: Final = -0.1
"""Reward of an action without effect, because the masks forbid it, or because its graph does not run."""

_FAR: Final = 100.0

Observation = dict[str, NDArray[Any]]
Action = NDArray[np.int64]


def chosen(action: Action, mask: NDArray[np.int8], illegal: str) -> tuple[int, int] | None:
    """Return rule and location; None for masked ones, if illegal actions are penalized.

    Raise `IllegalActionError` if they are not penalized, and for anything but two integers.
    """
    pair = [integer(each) for each in action] if np.shape(action) == (2,) else []
    match pair:
        case [int(rule), int(place)]:
            if 0 <= rule <= STOP and 0 <= place < LOCATIONS and mask[rule, place]:
                return rule, place
            if illegal == PENALIZE:
                return (STOP, 0) if rule == STOP else None
    rules = ", ".join(map(str, np.flatnonzero(mask.any(axis=1))))
    raise IllegalActionError(
        f"action {action!r} is not legal; choose a rule whose info['rule_mask'] is 1 (now {rules}), and a location "
        "whose info['location_mask'][rule] is 1"
    )


def masks_of(mask: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return a mask of rules and locations as two masks, one after the other."""
    return np.concatenate([mask.max(axis=1), mask.max(axis=0)]).astype(np.bool_)


class RewritesEnvironment(gymnasium.Env[Observation, Action]):
    """Choice of a rule and its place in a computation graph: an episode is one model, until it is stopped.

    **Actions.** (rule, location): the rule with that number in `RULES`, at its location with that number, in the order
    of the forward. The last rule, `STOP`, ends the episode. `info["action_mask"]` [rules + 1, 64] is 1 where an action
    applies, and all 0 when the episode is over; `rule_mask` and `location_mask` are those of its graph. Any other
    action raises `IllegalActionError`. With `illegal="penalize"`, other integers change nothing and are rewarded with
    -0.1, but for `STOP`, which stops at any location. A legal rewrite whose graph does not run any more has that
    reward, too.

    **Observations.** `nodes` [`size`, `FEATURES`]: the operators of the graph, see `features.FEATURES`; zeros after the
    last. `edges` [3 `size`, 2]: a node and its reader, -1 after the last; further ones are left out. `anchors` [rules +
    1, 64]: the first node of each action, -1 where there is none.

    **Rewards** are log(cost before ÷ cost after), by the table of costs: the return is the logarithm of the factor by
    which the graph is faster. With `judge`, the last step adds log(measured ÷ predicted): the return is measured.

    **End.** `STOP` terminates an episode, `horizon` steps truncate it. `info["plan"]` is then the argument of
    `espalier_lab.rewriting.engine.apply`.

    **Randomness** is only in the times of the table of costs, which are measured when they are first needed.

    **Figures.** `info["cost"]` of the net `handwritten`, relative to beam search with 433 graphs: 1.00 by masked PPO
    with 43 graphs, 1.02 by greedy search, 1.04 by random walks.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium declares it so)

    def __init__(
        self,
        net: str | Net = "handwritten",
        costs: OperatorCosts | None = None,
        horizon: int = HORIZON,
        size: int = 640,
        judge: Callable[[RewritePlan], float] | None = None,
        render_mode: None = None,
        illegal: str = RAISE,
    ) -> None:
        """Rewrite a model of `NETS`, or one with its inputs.

        `judge` returns the measured gain of a plan. Raise `ValueError` for an unknown net, or one whose graph may
        outgrow `size` nodes within the horizon, and `RewritesRefusedError` as `capture` does.
        """
        self.illegal = checked(illegal, PENALIZE)
        torch.cat([torch.empty(1, device="meta")] * 2)  # load torch's code for it now: it takes seconds
        if isinstance(net, str):
            if net not in NETS:
                raise ValueError(f"net is {net!r}; known are {', '.join(NETS)}, or give a model and its inputs")
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                net = NETS[net]()
        module, inputs = net
        graph = capture(module, inputs)
        if (most := sum(map(is_shown, graph.nodes.values())) + _ADDED * horizon) > size:
            raise ValueError(f"size is {size}; the graph may come to {most} nodes: give that, or a shorter horizon")
        self.costs = costs or OperatorCosts(module)
        self.horizon, self.size, self.judge, self.render_mode = horizon, size, judge, render_mode
        self._start = SearchState.start(graph, self.costs)
        self._fingerprint = graph.fingerprint()
        self._start_rows = self._rows_of(self._start, {})
        space = spaces.Dict(
            {
                "nodes": spaces.Box(-_FAR, _FAR, (size, FEATURES), np.float32),
                "edges": spaces.Box(-1, size - 1, (3 * size, 2), np.int32),
                "anchors": spaces.Box(-1, size - 1, (STOP + 1, LOCATIONS), np.int32),
            }
        )
        # Gymnasium types a Dict as a space of spaces, although it holds dictionaries of their elements.
        self.observation_space = cast("spaces.Space[Observation]", space)
        self.action_space = cast("spaces.Space[Action]", spaces.MultiDiscrete([STOP + 1, LOCATIONS]))
        self._running = False
        self._legal = np.zeros((STOP + 1, LOCATIONS), np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin with the graph of the original model."""
        super().reset(seed=seed)
        self._state, self._rows, self._steps, self._running = self._start, self._start_rows, 0, True
        self._offer()
        return self._observe(), self._info()

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Carry out a rewrite, or stop; raise `IllegalActionError`, or `ResetNeeded` if no episode is running."""
        if not self._running:
            raise ResetNeeded("no episode is running: call reset() before the first step and after the last")
        found = chosen(action, self._legal, self.illegal)
        self._steps += 1
        reward, stopped = 0.0, found is not None and found[0] == STOP
        if found is not None and not stopped:
            before, after = self._state.cost, self._state.after(self._offered[found[0]][found[1]])
            if after.cost == math.inf:  # a node no longer runs
                reward = FORBIDDEN
            else:
                self._state = after
                self._rows = self._rows_of(self._state, self._rows)
                reward = math.log(before / self._state.cost)
                self._offer()
        elif not stopped:
            reward = FORBIDDEN
        truncated = not stopped and self._steps >= self.horizon
        if stopped or truncated:
            self._running = False
            if self.judge is not None:
                reward += math.log(self.judge(self.plan) * self._state.cost / self._start.cost)
        return self._observe(), reward, stopped, truncated, self._info()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the rules that apply somewhere, then the locations at which some rule does; none before `reset`.

        Learners of sb3-contrib expect this form for an action of two numbers. Not all pairs of the two are legal: wrap
        the environment in `FlatEnvironment`, or let it penalize the others.
        """
        return masks_of(self._legal * self._running)

    @property
    def start(self) -> SearchState:
        """Return the graph of the original model, with its cost and its matches."""
        return self._start

    @property
    def state(self) -> SearchState:
        """Return the current graph of this episode, with its cost and its matches."""
        return self._state

    @property
    def plan(self) -> RewritePlan:
        """Return the rewrites of this episode so far."""
        return self._state.plan(self._fingerprint, self.costs.device)

    def _offer(self) -> None:
        offered: list[list[Match]] = [[] for _ in range(STOP)]
        for match in self._state.matches.all():
            places = offered[_NUMBER[match.rule.name]]
            if len(places) < LOCATIONS:
                places.append(match)
        self._offered = offered
        self._legal = np.zeros((STOP + 1, LOCATIONS), np.int8)
        for rule, places in enumerate(offered):
            self._legal[rule, : len(places)] = 1
        self._legal[STOP, 0] = 1

    def _rows_of(self, state: SearchState, before: dict[str, Row]) -> dict[str, Row]:
        """Return the features of all shown nodes; rows that the last rewrite did not affect are reused."""
        nodes, changed, whole = state.graph.nodes, state.graph.changed, self._start.cost
        return {
            name: before[name] if name in before and name not in changed else row(state, name, whole)
            for name, node in nodes.items()
            if is_shown(node)
        }

    def _observe(self) -> Observation:
        rows = self._rows
        places = {name: place for place, name in enumerate(rows)}
        nodes = np.zeros((self.size, FEATURES), np.float32)
        nodes[: len(rows)] = list(rows.values())
        np.clip(nodes, -_FAR, _FAR, out=nodes)
        pairs = edges(self._state.graph, places)
        seen = np.full((3 * self.size, 2), -1, np.int32)
        seen[: len(pairs)] = pairs[: 3 * self.size]
        anchors = np.full((STOP + 1, LOCATIONS), -1, np.int32)
        for rule, matches in enumerate(self._offered):
            anchors[rule, : len(matches)] = [places[match.location[0]] for match in matches]
        return {"nodes": nodes, "edges": seen, "anchors": anchors}

    def _info(self) -> dict[str, Any]:
        info = {
            "action_mask": self._legal * self._running,
            "rule_mask": self._legal.max(axis=1),
            "location_mask": self._legal.copy(),
            "cost": self._state.cost,
        }
        return info if self._running else info | {"plan": self.plan}


_NUMBER: Final = {rule.name: number for number, rule in enumerate(RULES)}
