"""The scheduler on Kubernetes: kopf records facts, the loop plans, and the status of each job is the memory.

From pure to edge: `settings`, `names`, `resources`, `reading`, `jobs`, `nodes`, `pods` (what objects say), `record`
(what is remembered of a job), `transitions`, `crew`, `ends` and `progress` (how that changes), `view` and `snapshot`
(what the planner is told), `template`, `objects` and `converge` (what is to exist), `notes` (what is told as Events),
`tallies`, `series` and `signals` (what is counted and timed, for `exporter`, which is scraped).
Then `shelf` and `store` (what is known), `tracked` (one job in mind), `client` (the API server, asked), `handlers` and
`watch` (how the store is filled), `flusher` and `writer` (how statuses and objects are written), `backend` (all that
behind the loop), `operator`; and around it the process: `access`, `lease`, `health`, `logs`, `options`, `service`,
`main`.
"""
