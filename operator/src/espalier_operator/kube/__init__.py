"""The scheduler on Kubernetes: kopf records facts, the loop plans, and the status of each job is the memory.

`client` is the asynchronous transport under the rules of `espalier_kube`.

Rooms: `objects` (what objects of the API server say, and what is to exist), `watch` (what is known of the cluster),
`state` (jobs as the operator has them in mind), `apply` (statuses and objects brought up to that), `metrics` (what is
counted) and `process` (the command, its credentials, election and health). `backend` joins them for the loop. How the
state of a job changes is not here but in `espalier_operator.job`.
"""
