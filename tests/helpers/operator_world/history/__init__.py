"""Adversarial histories: everything that may happen to an operator in a shared cluster, from a seed.

`world` is the cluster, `story` what happens in it, `clauses` what must hold whatever happens. The command is
`python -m operator_world.history` (`make histories`).
"""
