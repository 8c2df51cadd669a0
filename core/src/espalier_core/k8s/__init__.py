"""How operator, trainer and cli talk to an API server. What a part asks, and what follows from it, is its own.

`resources` (kinds and paths), `errors` (what a failure means, and when to try again) and `lists` (paging) are pure and
serve the operator's asynchronous client too. `connection`, `client` and `reflector` (list, then watch) are synchronous,
for the cli and the trainer. `client` and `connection` import the Kubernetes client, which takes half a second.
"""
