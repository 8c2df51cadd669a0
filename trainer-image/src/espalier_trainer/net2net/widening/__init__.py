"""More channels (Net2WiderNet): `groups` finds channels that change together, `trial` tries them, `widen` adds some.

`flow` follows channels through a trace (`spaces`: which are the same; `edits`: what changes with them). `replication`
computes the new weights, `optimizer` the new moments, `description` the agent's description of the groups.
"""
