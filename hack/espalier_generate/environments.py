"""The page of the Gymnasium environments, generated from the registered ones and their docstrings.

`python -m espalier_generate.environments [PATH]` prints it, or writes it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import gymnasium
from gymnasium import spaces

import espalier_lab.environments as registered
from espalier_core.files.documents import print_or_write

_HEAD: Final = f"""\
# Environments for learners

<!-- Written by `make docs` from the environments that {registered.__name__} registers; change their docstrings. -->

```python
import gymnasium

environment = gymnasium.make("{registered.__name__}:espalier/Placement-v0")
observation, info = environment.reset(seed=0)
```

The part before the colon is the module that registers all of them: Gymnasium knows no environment before it is
registered. After `import {registered.__name__}`, the name alone is enough. The version in a name rises with every
change that affects learning. [Research](../research.md) shows how to use them.

An action is illegal where `info["action_mask"]` is 0, as all are once the episode is over. It raises
`IllegalActionError`, which names the legal ones, and changes nothing: a learner that ignores the mask is wrong. For
learners that know no masks, as a plain PPO, and for Gymnasium's `check_env`, the argument `illegal` names another rule.
`action_masks()` returns the mask as Maskable PPO of [sb3-contrib](https://sb3-contrib.readthedocs.io) asks for it.
`FlatEnvironment`, in the same module, makes an observation one vector from -1 to 1, and an action one number:

```{{ .python }}
environment = FlatEnvironment(gymnasium.make("espalier/Outcomes-v0", reward="over-mean"))
vectorised = VecNormalize(DummyVecEnv([lambda: environment]), gamma=1.0)
MaskablePPO("MlpPolicy", vectorised, gamma=1.0).learn(30_000)
```

`VecNormalize` scales rewards and observations as they come. With it, all of five seeds are better than any constant
sequence of decisions, without it none ([figures](../reports/study.md#maskable-ppo)).
"""


def page() -> str:
    """Return the page: a table of all environments, and each with its arguments and spaces."""
    names = sorted(name for name in gymnasium.registry if name.startswith("espalier/"))
    made = {name: gymnasium.make(name).unwrapped for name in names}
    lines = [
        _HEAD,
        "| environment | decisions | illegal actions, on wish | vectorised |",
        "| --- | --- | --- | --- |",
    ]
    lines += [_row(name, environment) for name, environment in made.items()]
    for name, environment in made.items():
        lines += ["", *_section(name, environment)]
    return "\n".join(lines) + "\n"


def _row(name: str, environment: gymnasium.Env[Any, Any]) -> str:
    first = _docstring(environment)[0].partition(":")[0]
    vectorised = "yes" if gymnasium.spec(name).vector_entry_point else ""
    return (
        f'| [`{name}`](#{_anchor(name)}) | {first[0].lower()}{first[1:]} | `"{_other(environment)}"` | {vectorised} |'
    )


def _section(name: str, environment: gymnasium.Env[Any, Any]) -> Iterator[str]:
    first, *paragraphs = _docstring(environment)
    yield f"## {name}\n\n{first}\n"
    for paragraph in paragraphs:
        yield f"{paragraph}\n"
    arguments = inspect.signature(type(environment).__init__).parameters.values()
    given = ", ".join(
        f"`{each.name}={_default(each)}`" for each in arguments if each.name not in ("self", "render_mode")
    )
    yield f"**Arguments** of `make`: {given}; see `{type(environment).__module__}.{type(environment).__name__}`.\n"
    yield f"Actions: `{environment.action_space}`. Observations, with the default arguments:\n"
    yield "| entry | shape | type | from | to |\n| --- | --- | --- | ---: | ---: |"
    observed = environment.observation_space
    assert isinstance(observed, spaces.Dict)  # noqa: S101  (all are)
    for entry, space in observed.items():
        low, high = (space.low.min(), space.high.max()) if isinstance(space, spaces.Box) else (0, 1)
        yield f"| `{entry}` | {space.shape} | {space.dtype} | {low:g} | {high:g} |"


def _docstring(environment: gymnasium.Env[Any, Any]) -> list[str]:
    """Return the paragraphs, each on one line."""
    text = inspect.getdoc(type(environment)) or ""
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _other(environment: gymnasium.Env[Any, Any]) -> str:
    """Return the environment's treatment of illegal actions if it does not raise."""
    found = re.search(r'`?illegal="(\w+)"', " ".join(_docstring(environment)))
    assert found is not None, environment  # noqa: S101  (each names it)
    return found[1]


def _default(parameter: inspect.Parameter) -> str:
    default = parameter.default
    return repr(
        str(default) if isinstance(default, str) else default.name.lower() if isinstance(default, Enum) else default
    )


def _anchor(name: str) -> str:
    return re.sub(r"[^\w-]", "", name.lower())


if __name__ == "__main__":
    print_or_write(page(), sys.argv[1:])
