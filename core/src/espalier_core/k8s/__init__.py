"""The client of API servers for operator, trainer and cli. Each part chooses its own requests.

`resources` (kinds, paths, paging) and `errors` (meanings of failures, and retries) are pure and serve the operator's
asynchronous client too. `client` and `reflector` (list, then watch) are synchronous, for the cli and the trainer.
`client` imports the Kubernetes client, which takes half a second.
"""
