"""The commands against a cluster: `list`, `explain`, `top`, `watch`, `snapshot`, `plan`.

Pure functions of what `client` reads make what is printed: `usage`, `case`, `causes`, `decisions`,
`narration`. The Kubernetes client is imported when a command connects, because that takes half a second.
"""
