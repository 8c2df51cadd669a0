"""The commands against a cluster: `list`, `explain`, `top`, `watch`, `snapshot`, `plan`.

Pure functions of what was fetched make what is printed: `standing`, `jobs_table`, `usage`, `case`, `explanation`,
`decisions`, `narration`. `client` and `fetch` are the edge. The Kubernetes client is imported when a command connects,
because that takes half a second.
"""
