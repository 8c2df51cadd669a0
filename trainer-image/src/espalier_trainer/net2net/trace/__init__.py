"""What a model executes, found by running it once: `tracing.trace` returns a `graph.Graph`.

`recorder` writes down what is called, `operators` gives a module and its functional twin one name.
"""
