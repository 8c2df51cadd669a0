"""The life of a job, the same for every backend: what is remembered of it, and how that changes. Pure.

A backend (Kubernetes pods, local processes, a simulation) supplies facts, an `Observation` of the job's workers and of
its leader's report, and carries out what follows. `progress.look` brings the `JobState` up to an observation,
`transitions.after` up to a decision of the planner; `view.facts_of` is what the planner reads of both, and `view` turns
a state into the job's status and back, and `conditions` into what people read.

Times are seconds of the backend's clock: epoch seconds on Kubernetes, budget seconds elsewhere.
"""
