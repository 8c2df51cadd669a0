"""The life cycle of a job, the same for every backend: its recorded state and the transitions of it. Pure.

A backend (Kubernetes pods, local processes, a simulation) supplies facts, an `Observation` of the job's workers and of
its leader's report, and carries out the consequences. `progress.look` applies an observation to the `JobState`,
`transitions.after` a decision of the planner. `view.facts_of` makes the planner's facts from both; `view` converts a
state to the job's status and back, and `conditions` makes the conditions that people read.

Times are seconds of the backend's clock: epoch seconds on Kubernetes, budget seconds elsewhere.
"""
