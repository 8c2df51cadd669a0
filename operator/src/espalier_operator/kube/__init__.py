"""The scheduler on Kubernetes: kopf records facts, the loop plans, and each job's status stores its state.

`client` is the asynchronous transport under the rules of `espalier_core.k8s`, including its credentials.

Packages: `objects` (objects of the API server, read and built), `watch` (the known state of the cluster), `state` (the
operator's state of each job), `apply` (writes statuses and objects), `metrics` and `process` (the command, its
election and health). `backend` joins them for the loop. `espalier_operator.job` defines how the state of a
job changes.
"""
