"""Growth that is tried on extra workers, pods of their own, before it is carried out."""

from __future__ import annotations

import sys
from pathlib import Path

from kube import Nodes, Space, digits, run, wait_for

ESPALIER = Path(sys.executable).with_name("espalier")


def test_extra_workers_try_a_growth_and_train_with_the_base_again(space: Space, nodes: Nodes) -> None:
    nodes.set_gpus(3)
    # A tenth of the budget is how long advice waits for the workers, which import torch, and how long they try.
    adaptation = {"mode": "Auto", "decisionTimeoutSeconds": 5, "maxAdaptations": 1, "trials": "Confirm"}
    training = {"elasticBatch": "keepGlobal"}
    space.apply(digits("tries", budget=360, maxReplicas=3, adaptation=adaptation, training=training))
    space.wait_extra("tries", 2)
    (decided,) = wait_for("it has decided", lambda: space.report("tries").get("adaptations"), 150)
    grown, nothing = decided["arms"]
    assert grown["action"].startswith("Deepen(")
    assert nothing["action"] == "Nothing"
    for arm in (grown, nothing):
        assert arm["steps"] > 0
        assert 0 < arm["loss"] < 5
        assert [part["share"] for part in arm["slices"]] == [0.1]
    if decided["result"] == "Grown":
        assert decided["depthAfter"] == decided["depthBefore"] + 1
    else:
        assert (decided["result"], decided["reason"]) == ("Declined", "TrialNotBetter")
    # The base went on alone meanwhile, and the workers are with it again.
    wait_for("all train together", lambda: space.training("tries") == 3)
    space.trains_on("tries")

    entry = wait_for("the status has it", lambda: space.status("tries").get("adaptations"))[0]
    assert [arm["action"] for arm in entry["arms"]] == [grown["action"], "Nothing"]
    told = run(str(ESPALIER), "explain", "tries", "--namespace", space.name)
    assert "validation loss when tried" in " ".join(told.split())
    status = space.status("tries")
    assert status["scheduling"]["extra"] == 2
    assert (status["restarts"], status["preemptions"]) == (0, 0)
