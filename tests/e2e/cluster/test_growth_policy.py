"""The policy `growth` on real pods: the spare GPU goes to who gains by growing, and comes back."""

from __future__ import annotations

from typing import Any

import pytest
from kube import Nodes, Space, digits, helm, wait_for


@pytest.mark.disturbs(operator=True)
def test_the_spare_gpu_goes_to_the_job_that_gains_by_growing_and_comes_back(
    space: Space, nodes: Nodes, installation: None
) -> None:
    options = ("--reset-then-reuse-values", "--wait", "--timeout=180s", "--set", "policy.name=growth")
    helm("upgrade", "espalier", "charts/espalier", *options)
    nodes.set_gpus(1)
    # Of one model. The older one may not grow by any layer: its agent can advise nothing, so it gains nothing.
    often = {"mode": "Auto", "decisionTimeoutSeconds": 5, "fallback": "Heuristic", "maxAdaptations": 1}
    space.apply(digits("older", budget=180, adaptation={**often, "maxParameters": 1}))
    space.wait_condition("older", "Running")
    space.apply(digits("gains", budget=180, adaptation=often))
    nodes.set_gpus(2)
    space.wait_condition("gains", "Running")
    wait_for("its agent says that it gains nothing", lambda: expected(space, "older") == 0.0)
    nodes.set_gpus(3)

    space.wait_extra("gains", 1)
    wait_for("it has grown", lambda: space.report("gains").get("adaptations"))
    wait_for("it can gain no more", lambda: expected(space, "gains") == 0.0)
    space.wait_extra("gains", 0)
    wait_for("its extra worker has ended", lambda: not space.pods("gains", "extra"))
    assert [entry["result"] for entry in space.report("gains")["adaptations"]] == ["Grown"]
    assert {event["involvedObject"]["name"] for event in space.events("ExtraGPUsGranted")} == {"gains"}
    assert not space.events("ReclaimForced"), "it gives back by itself"
    for job in ("older", "gains"):
        space.trains_on(job)
        status = space.status(job)
        assert status["scheduling"]["extra"] == 0, "nobody gains by it"
        assert (status["restarts"], status["preemptions"]) == (0, 0)


def expected(space: Space, job: str) -> Any:
    """Return what growing gains by the word of the job's agent, None where it has not said."""
    growth = (space.report(job).get("measurements") or {}).get("growth") or {}
    return growth.get("gain")
