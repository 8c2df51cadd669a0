"""The scheduler on Kubernetes: kopf records facts, the loop plans, and the status of each job is the memory.

Rooms: `objects` (what objects of the API server say, and what is to exist), `watch` (what is known of the cluster),
`metrics` (what is counted) and `process` (the command, its credentials, election and health). Between them one job's
life: `record` (what its status remembers), `transitions`, `crew`, `ends` and `progress` (how that changes), `view` and
`snapshot` (what the planner sees), `tracked` (one job in mind), `converge` (what is to be made and deleted),
`flusher` and `writer` (how statuses and objects are written), and `backend` (all that, as the loop needs it).
"""
