"""The environment of rewrites: as Gymnasium asks, with masks that say what holds, and rewards that add up."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from drawn_models import row_model
from gymnasium.error import ResetNeeded
from torch import Tensor

from espalier_lab.rewriting.engine import OperatorCosts, apply, capture, verify
from espalier_lab.rewriting.learned import NETS, IllegalActionError, RewritesEnvironment
from espalier_lab.rewriting.learned.environment import STOP
from espalier_lab.rewriting.learned.nets import Net


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return row_model(["norm by hand", "attention by hand", "chain", "gelu by hand"])


def test_masked_episodes_end_in_plans_that_compute_the_same(net: Net) -> None:
    environment = RewritesEnvironment(net, horizon=8)
    draw = np.random.default_rng(0)
    for _ in range(3):
        observation, info = environment.reset()
        start, total, over = info["cost"], 0.0, False
        while not over:
            assert (observation["anchors"] >= 0).sum() == info["location_mask"].sum() - 1  # to stop begins nowhere
            rules = info["rule_mask"].nonzero()[0]
            rule = draw.choice(rules)
            place = draw.choice(info["location_mask"][rule].nonzero()[0])
            observation, reward, terminated, truncated, info = environment.step(np.array([rule, place]))
            total += reward
            over = terminated or truncated
        assert total == pytest.approx(math.log(start / info["cost"]), abs=1e-9)
        module, inputs = net
        assert verify(module, apply(module, info["plan"], inputs), inputs, Tensor.sum).right


def test_no_step_loads_what_takes_seconds() -> None:
    program = (
        "import sys, gymnasium\n"
        "environment = gymnasium.make('espalier_lab.environments:espalier/Rewrites-v0')\n"
        "_, info = environment.reset()\n"
        "loaded = set(sys.modules)\n"
        "environment.step(tuple(info['action_mask'].nonzero()[part][0] for part in range(2)))\n"
        "print(len([name for name in sys.modules.keys() - loaded if name.startswith('torch')]))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 20, "torch._dynamo brings hundreds"


def test_what_the_masks_forbid_is_refused(net: Net) -> None:
    environment = RewritesEnvironment(net)
    _, info = environment.reset()
    rule = next(number for number, holds in enumerate(info["rule_mask"]) if not holds)
    holds = next(number for number, holds in enumerate(info["rule_mask"]) if holds)
    wrong = [(rule, 0), (holds, -1), (-1, 0), (STOP + 1, 0), (holds, 64), (STOP, 1)]
    for action in (*wrong, (holds, 0.5), (holds,), holds, None):
        with pytest.raises(IllegalActionError, match=r"is not legal; choose a rule whose .*rule_mask.* is 1 \(now "):
            environment.step(action)  # type: ignore[arg-type]
        assert environment.state is environment.start
    assert environment.step(np.array([holds, 0]))[4]["cost"] != info["cost"]
    with pytest.raises(ValueError, match="illegal is 'wrap'; choose 'raise' or 'penalize'"):
        RewritesEnvironment(net, illegal="wrap")


def test_what_the_masks_forbid_is_penalized_on_wish_and_stopping_is_judged(net: Net) -> None:
    environment = RewritesEnvironment(net, judge=lambda plan: 2.0, illegal="penalize")
    with pytest.raises(ResetNeeded):
        environment.step(np.array([STOP, 0]))
    _, info = environment.reset()
    rule = next(number for number, holds in enumerate(info["rule_mask"]) if not holds)
    holds = next(number for number, holds in enumerate(info["rule_mask"]) if holds)
    for action in ([rule, 3], [holds, -1], [rule, -1], [-1, 0], [STOP + 1, 0]):
        _, reward, terminated, truncated, after = environment.step(np.array(action))
        assert (reward, terminated, truncated, after["cost"]) == (-0.1, False, False, info["cost"])
        assert environment.state is environment.start
    _, reward, terminated, _, _ = environment.step(np.array([STOP, 3]))
    assert terminated
    assert reward == pytest.approx(math.log(2.0))


def test_nets_that_are_not_known_or_too_large_are_refused(net: Net) -> None:
    with pytest.raises(ValueError, match="'lenet'; known are handwritten"):
        RewritesEnvironment("lenet")
    with pytest.raises(ValueError, match="size is 20"):
        RewritesEnvironment(net, size=20)


@pytest.mark.parametrize("name", ["handwritten", "repvgg-like", "cifar8 grown", "gpt"])
def test_the_nets_of_the_benchmark_are_captured(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = NETS[name]()
    graph = capture(module, inputs)
    assert graph.both_modes
    assert len(graph.nodes) > 20
    assert OperatorCosts(module).device.startswith("cpu")
