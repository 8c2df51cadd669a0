"""The commands against a cluster: `list`, `explain`, `top`, `watch`, `snapshot`, `plan`.

What is said is made by pure functions of what was fetched (`standing`, `jobs_table`, `usage`, `explanation`, `changes`,
`decisions`); `client` and `follow` are the edge, and the only modules that know the Kubernetes client. It is imported
when a command connects: it takes half a second.
"""
