"""Jobs on a GPU: they grow, stop and go on, there or on the CPU; sums over several workers' GPUs.

`make test-cuda` also runs the tests of worker processes, which take the GPU where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore, PrefixStore

from espalier_core.types.advice import Action
from espalier_core.types.report import AdaptationResult, TrainerPhase
from espalier_lab.rewriting.engine import SEARCHES, OperatorCosts, apply, capture, search, verify
from espalier_lab.rewriting.learned.nets import repvgg
from espalier_lab.virtual_time import Scripted
from espalier_trainer.data import load_data
from espalier_trainer.elastic.group import DeviceSums, GroupBrokenError
from on_cuda import DEVICE, NEEDS_CUDA, full_precision, on_the_device

__all__ = ["full_precision"]
pytestmark = [*NEEDS_CUDA, pytest.mark.usefixtures("full_precision")]
Run = Callable[..., Any]


def test_a_job_grows_and_goes_on_after_a_stop(run, make_job, tmp_path, stop_after):
    job = make_job()
    script = (Action.deepen("block0"), Action.deepen("block2"))
    whole = run(job, advisor=Scripted(script), up_at=0.1, device=DEVICE)
    assert whole.result.phase is TrainerPhase.COMPLETED
    assert [each.result for each in whole.result.adaptations][:2] == [AdaptationResult.GROWN] * 2
    assert on_the_device(whole.trainer.network.module)
    for name, then in (("there", DEVICE), ("elsewhere", torch.device("cpu"))):
        store = tmp_path / name
        first = run(job, advisor=Scripted(script), up_at=0.1, store=store, stop=stop_after(71), device=DEVICE)
        assert first.result.phase is TrainerPhase.STOPPED
        second = run(job, advisor=Scripted(script), up_at=0.1, store=store, device=then)
        assert second.result.phase is TrainerPhase.COMPLETED
        assert second.result.steps == whole.result.steps
        assert second.trainer.network.history == whole.trainer.network.history


@pytest.mark.parametrize("precision", ["Float32", "BFloat16"])
@pytest.mark.parametrize("insertion", ["Exact", "Scaled", "Unfold"])
def test_a_language_model_gets_a_block(run, make_job, tmp_path, precision, insertion):
    text = tmp_path / "a.txt"
    text.write_text("".join(f"{number} and {number + 1} are {2 * number + 1}. " for number in range(400)))
    training = {
        "task": "LanguageModel",
        "model": {"name": "gpt", "options": {"width": 16, "heads": 2}},
        "dataset": {"name": "text", "path": str(text), "options": {"context": 16, "windows": 64}},
        "batchSize": 8,
        "precision": precision,
        "weightAveraging": 0.9,
        "gradientCheckpointing": True,
        "optimizer": {"name": "AdamW", "learningRate": 0.01, "decayMatricesOnly": True, "maxGradientNorm": 0.5},
    }
    job = make_job(adaptation={"actions": ["AddBlock"], "insertion": insertion}, training=training)
    data = load_data(job.spec.training.dataset, job.spec.training.task)
    add = Action(kind="AddBlock", target="blocks.0")
    ran = run(job, advisor=Scripted((add,)), up_at=0.1, data=data, device=DEVICE)
    assert ran.result.phase is TrainerPhase.COMPLETED
    assert ran.result.adaptations[0].result is AdaptationResult.GROWN
    assert on_the_device(ran.trainer.network.module)


@pytest.mark.parametrize("layout", ["Contiguous", "Auto"])
def test_a_job_looks_for_faster_steps(run, make_job, layout):
    job = make_job(adaptation={"optimise": "Rewrites", "optimiseShare": 0.5}, training={"memoryFormat": layout})
    ran = run(job, device=DEVICE)
    assert ran.result.phase is TrainerPhase.COMPLETED


@pytest.mark.parametrize("method", SEARCHES)
def test_rewrites_compute_the_same(method):
    module, inputs = repvgg(widths=(8, 16), pixels=16)
    module, inputs = module.to(DEVICE), inputs.to(DEVICE)
    graph, costs = capture(module, inputs), OperatorCosts(module)
    plan = search(graph, costs, method=method, evaluations=50).best[0][1]
    execution = apply(module, plan, inputs)
    assert verify(module, execution, inputs, lambda outputs: outputs.logsumexp(-1).mean()).right


def test_sums_of_one_member_that_come_and_go():
    for generation in range(3):
        sums = DeviceSums(PrefixStore(str(generation), HashStore()), 0, 1, DEVICE, 30.0)
        tensor = torch.arange(5.0, device=DEVICE)
        sums.sending(tensor).wait()
        assert tensor.tolist() == [0, 1, 2, 3, 4]
        sums.close()
        with pytest.raises(GroupBrokenError):
            sums.sending(tensor)


def test_a_member_that_does_not_come_is_not_waited_for_without_limit():
    with pytest.raises(GroupBrokenError, match="has not connected the members within 2 s"):
        DeviceSums(HashStore(), 0, 2, DEVICE, 2.0)
    assert torch.ones(2, device=DEVICE).sum().item() == 2  # the device computes on
