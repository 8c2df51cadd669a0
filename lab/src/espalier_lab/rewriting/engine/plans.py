"""A plan: the rules that a search has chosen, in order. It is stored as JSON and applied again without a search."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import fx, nn

from espalier_lab.rewriting.engine.capture import capture
from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.rules import BY_NAME
from espalier_trainer.net2net.modules import ExampleInput, device_of
from espalier_trainer.training.execution import RewritesRefusedError


class RewriteStep(BaseModel):
    """One rule, and its nodes, by their names in the graph that it is applied to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str
    location: tuple[str, ...]


class RewritePlan(BaseModel):
    """Another computation of a model. `model_dump_json` writes it, `model_validate_json` reads it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fingerprint: str = Field(description="Fingerprint of the starting graph, independent of the batch size.")
    device: str = Field(description="The kind of device that the costs were measured on.")
    rules: tuple[RewriteStep, ...] = ()


def device_kind(module: nn.Module) -> str:
    """Return the name of the device that holds the parameters: the GPU's, or `cpu` and its number of threads."""
    device = device_of(module)
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{device.type}-{torch.get_num_threads()}"


def rewritten(graph: OpGraph, plan: RewritePlan) -> OpGraph:
    """Return `graph` after all rules of the plan.

    Raise `RewritesRefusedError` if the plan was made for another graph, or random draws would change their order.
    """
    if (found := graph.fingerprint()) != plan.fingerprint:
        raise RewritesRefusedError(f"the plan is for the computation {plan.fingerprint}, and this model's is {found}")
    before = graph.effects()
    for step in plan.rules:
        rule = BY_NAME.get(step.rule)
        if rule is None or not step.location or step.location[0] not in graph.nodes:
            raise RewritesRefusedError(f"the plan has {step.rule} at {step.location}, which is unknown here")
        at = step.location[0]
        if graph.nodes[at].operator not in rule.anchors or step.location not in list(rule.find(graph, at)):
            raise RewritesRefusedError(f"{step.rule} does not hold at {step.location} any more")
        graph = rule.rewrite(graph, step.location)
    if graph.effects() != before:
        raise RewritesRefusedError("the plan would change the order of random draws, or of updates of buffers")
    return graph


def apply(module: nn.Module, plan: RewritePlan, example_inputs: ExampleInput) -> fx.GraphModule:
    """Return a module that computes the same as `module` by the plan, with its parameters, buffers and layers.

    Raise `RewritesRefusedError` as `capture` and `rewritten` do.
    """
    return emitted(rewritten(capture(module, example_inputs), plan), module)
