"""Trace of a model's operations, recorded by running it once: `tracing.trace` returns a `graph.Graph`.

`recorder` records the calls; `operators` gives a module and its functional counterpart the same name.
"""
