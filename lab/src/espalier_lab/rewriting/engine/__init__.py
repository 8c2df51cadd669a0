"""Other computations with equal results: rules rewrite a model's forward; its parameters stay unchanged.

graph = capture(model, inputs)                     # raises RewritesRefusedError, with the reason
plan = search(graph, costs)                        # rules with their places; JSON
execution = apply(model, plan, inputs)             # a GraphModule over the same parameters and buffers
verify(model, execution, inputs, loss).right       # float64: outputs, gradient, buffers
compare(model, execution, step).faster(.03)        # steps in interleaved pairs
"""

from __future__ import annotations

from espalier_lab.rewriting.engine.capture import capture
from espalier_lab.rewriting.engine.costs import OperatorCosts
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.plans import RewritePlan, RewriteStep, apply, device_kind
from espalier_lab.rewriting.engine.search import SEARCHES, SearchResult, search
from espalier_lab.rewriting.engine.verifying import TOLERANCE, Errors, verify
from espalier_trainer.training.execution import PAIRS, WARMUP, Comparison, RewritesRefusedError, compare

__all__ = [
    "PAIRS",
    "SEARCHES",
    "TOLERANCE",
    "WARMUP",
    "Comparison",
    "Errors",
    "OpGraph",
    "OperatorCosts",
    "RewritePlan",
    "RewriteStep",
    "RewritesRefusedError",
    "SearchResult",
    "apply",
    "capture",
    "compare",
    "device_kind",
    "search",
    "verify",
]
