"""The scheduler on Kubernetes: kopf records facts, the loop plans, and the status of each job is the memory.

From pure to edge: `settings`, `names`, `reading`, `jobs`, `nodes`, `pods` (what objects say), `record` (what is
remembered of a job), `crew` (its pods, sorted), `transitions`, `ends` and `progress` (how the record changes), `view`
(what the planner is told), `template`, `objects` and `converge` (what is to exist), `notes` (what is told as Events);
then `client`, `store`, `handlers`, `backend`, `lease`, `main`.
"""
