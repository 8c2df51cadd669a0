"""For tests of planners and backends: a naive cluster, strategies, and the planner's invariants as checks.

Shipped, so that every backend and every policy of one's own can be run against the same machine. Needs Hypothesis,
which the scheduler itself does not.
"""
