"""Outcome tables as a Gymnasium environment: Lamelas's simulated environment (6.4) for anyone's learner.

Importing this package registers it:

    >>> import gymnasium
    >>> environment = gymnasium.make("espalier_agent.environment:espalier/Outcomes-v0", reward="over-nothing")
    >>> observation, info = environment.reset(seed=0)
    >>> action = environment.action_space.sample(mask=info["action_mask"])
    >>> observation, reward, terminated, truncated, info = environment.step(action)

The version in the name rises with anything that changes what is learnt here. The service does not import this.
"""

import gymnasium

from espalier_agent.environment.outcomes import ENVIRONMENT_ID, OutcomeEnvironment, Sampling
from espalier_core.illegal_actions import IllegalActionError

__all__ = ["ENVIRONMENT_ID", "IllegalActionError", "OutcomeEnvironment", "Sampling"]

gymnasium.register(
    id=ENVIRONMENT_ID,
    entry_point="espalier_agent.environment:OutcomeEnvironment",
    vector_entry_point="espalier_agent.environment.outcomes:OutcomeVectorEnvironment",
)
