"""A naive cluster, strategies and invariants: what tests of the planner and of its backends share.

`cluster` and `invariants` are the planner's world, `kubernetes` and what it builds on that of the Kubernetes backend.
"""
