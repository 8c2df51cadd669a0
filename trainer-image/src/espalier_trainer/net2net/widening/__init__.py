"""More channels (Net2WiderNet): `groups` finds channels that change together, `trial` tries them, `widen` adds some.

`flow` follows channels through a trace (`spaces`: equal channels, and what changes with them). `groups` computes
the new weights, `widen` the new moments, `description` the agent's description of the groups.
"""
