"""All environments that are registered: found by one import, one rule for illegal actions, masks, and flat."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from drawn_models import row_model
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from sb3_contrib import MaskablePPO

from espalier_generate.environments import page
from espalier_lab.environments import FlatEnvironment
from espalier_lab.illegal_actions import IllegalActionError
from espalier_lab.rewriting.engine import OperatorCosts
from espalier_lab.scheduling.allocation.forms import SlotForm
from espalier_lab.scheduling.placement.tasks import Family

IDS = sorted(name for name in gymnasium.registry if name.startswith("espalier/"))


@pytest.fixture(scope="module")
def arguments() -> dict[str, dict[str, Any]]:
    """Return what makes some of them small, and their rewards the same each time."""
    torch.manual_seed(0)
    net = row_model(["norm by hand", "chain", "gelu by hand"])
    return {
        "espalier/Allocation-v0": {"form": SlotForm(24)},
        "espalier/Placement-v0": {"family": Family(nodes=6, jobs=12)},
        "espalier/Rewrites-v0": {"net": net, "costs": OperatorCosts(net[0]), "horizon": 6},
    }


def test_one_import_registers_all_without_torch() -> None:
    program = (
        "import sys, gymnasium\n"
        "gymnasium.make('espalier_lab.environments:espalier/Placement-v0')\n"
        "assert 'torch' not in sys.modules\n"
        "print(*sorted(name for name in gymnasium.registry if name.startswith('espalier/')))"
    )
    found = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == IDS
    assert len(IDS) == 4


@pytest.mark.parametrize("name", IDS)
def test_an_illegal_action_raises_and_changes_nothing_and_another_rule_can_be_chosen(
    name: str, arguments: dict[str, dict[str, Any]]
) -> None:
    more = arguments.get(name, {})
    environment = gymnasium.make(name, **more).unwrapped
    assert inspect.signature(type(environment).__init__).parameters["illegal"].default == "raise"
    first, info = environment.reset(seed=3)
    legal, shape = np.argwhere(info["action_mask"]), np.shape(info["action_mask"])
    illegal = np.argwhere(np.asarray(info["action_mask"]) == 0)
    wrong: list[Any] = [each if len(shape) > 1 else int(each[0]) for each in illegal[:1]]
    for action in (*wrong, *([-1, shape[0]] if len(shape) == 1 else [(-1, 0), (shape[0], 0)]), 0.5, None, "stop"):
        with pytest.raises(IllegalActionError):
            environment.step(action)
    choice = legal[0] if len(shape) > 1 else int(legal[0][0])
    after = environment.step(choice)
    environment.reset(seed=3)
    again = environment.step(choice)
    assert (after[1:4], sorted(after[0])) == (again[1:4], sorted(first))
    assert all((after[0][key] == again[0][key]).all() for key in first)
    with pytest.raises(ValueError, match="illegal is 'nonsense'; choose 'raise' or ") as told:
        gymnasium.make(name, **more, illegal="nonsense")
    (other,) = re.findall("or '(.*)'", str(told.value))
    check_env(gymnasium.make(name, **more, illegal=other).unwrapped, skip_render_check=True)
    tolerant = gymnasium.make(name, **more, illegal=other)
    tolerant.reset(seed=3)
    for action in wrong:
        tolerant.step(action)


@pytest.mark.parametrize("name", IDS)
def test_masks_are_those_that_learners_ask_for(name: str, arguments: dict[str, dict[str, Any]]) -> None:
    environment = gymnasium.make(name, **arguments.get(name, {}))
    masks = environment.get_wrapper_attr("action_masks")
    dimensions = environment.action_space
    size = dimensions.n if isinstance(dimensions, spaces.Discrete) else sum(dimensions.nvec)  # type: ignore[attr-defined]
    assert masks().tolist() == [False] * size, "before the first episode"
    _, info = environment.reset(seed=0)
    draw, over = np.random.default_rng(0), False
    while not over:
        mask = info["action_mask"]
        expected = mask if mask.ndim == 1 else np.concatenate([mask.max(axis=1), mask.max(axis=0)])
        assert masks().dtype == np.bool_
        assert masks().tolist() == expected.astype(bool).tolist()
        chosen = draw.choice(np.argwhere(mask))
        _, _, terminated, truncated, info = environment.step(chosen if mask.ndim > 1 else int(chosen[0]))
        over = terminated or truncated
    assert not info["action_mask"].any()
    assert not masks().any()


@pytest.mark.parametrize("name", [name for name in IDS if gymnasium.spec(name).vector_entry_point])
def test_vectorised_environments_have_the_masks_of_all(name: str) -> None:
    environments = gymnasium.make_vec(name, num_envs=3, vectorization_mode="vector_entry_point")
    masks: Any = environments.action_masks  # type: ignore[attr-defined]
    _, infos = environments.reset(seed=0)
    for _ in range(4):
        assert masks().tolist() == infos["action_mask"].astype(bool).tolist()
        _, _, _, _, infos = environments.step(infos["action_mask"].argmax(axis=1))


@pytest.mark.parametrize("name", IDS)
def test_a_flat_environment_is_the_same_in_one_vector_and_one_number(
    name: str, arguments: dict[str, dict[str, Any]]
) -> None:
    plain = gymnasium.make(name, **arguments.get(name, {}))
    flat = FlatEnvironment(gymnasium.make(name, **arguments.get(name, {})))
    assert not flat.action_masks().any()
    (_, info), (seen, _) = plain.reset(seed=1), flat.reset(seed=1)
    draw, over = np.random.default_rng(0), False
    while not over:
        assert flat.observation_space.contains(seen)
        mask = np.asarray(info["action_mask"])
        assert flat.action_masks().tolist() == mask.ravel().astype(bool).tolist()
        action = int(draw.choice(np.flatnonzero(mask)))
        inner = action if mask.ndim == 1 else np.array(np.unravel_index(action, mask.shape))
        observation, reward, terminated, truncated, info = plain.step(inner)
        seen, *same = flat.step(action)
        assert same[:3] == [reward, terminated, truncated]
        over = terminated or truncated
    small = np.concatenate([np.ravel(observation[key]) for key in sorted(observation)])
    inside = np.abs(seen) < 1
    assert (np.sign(seen) == np.sign(small)).all(), "nothing is lost"
    assert (np.abs(seen[inside]) <= np.maximum(1, np.abs(small[inside]))).all()
    with pytest.raises(ValueError, match="speed: has no bounds, so it cannot be scaled"):
        FlatEnvironment(Unbounded())


@pytest.mark.parametrize("name", IDS)
def test_maskable_ppo_learns_in_all_without_an_illegal_action(name: str, arguments: dict[str, dict[str, Any]]) -> None:
    environment = FlatEnvironment(gymnasium.make(name, **arguments.get(name, {})))
    learner = MaskablePPO("MlpPolicy", environment, gamma=1.0, n_steps=32, batch_size=32, device="cpu", seed=0)
    before = [parameter.clone() for parameter in learner.policy.parameters()]
    learner.learn(32)
    changed = zip(before, learner.policy.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in changed)


class Unbounded(gymnasium.Env[Any, Any]):
    """An environment that does not say how large its observations get."""

    observation_space = spaces.Dict({"speed": spaces.Box(-np.inf, np.inf, (1,))})
    action_space = spaces.Discrete(2)


def test_the_page_lists_them_all_as_they_are() -> None:
    stale = "docs/reference/environments.md is stale; renew it: make docs"
    assert (Path(__file__).parents[3] / "docs" / "reference" / "environments.md").read_text() == page(), stale
