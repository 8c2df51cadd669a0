"""The commands against a cluster: `list`, `explain`, `top`, `watch`, `snapshot`, `plan`.

Pure functions turn the data that `client` reads into the output: `usage`, `case`, `causes`, `decisions`, `narration`.
The Kubernetes client is imported when a command connects, because that takes half a second.
"""
