"""Policy files in the product: the reader that the operator's policy `learned` finds, and the policy server.

Without torch, kopf and the client of API servers: the server runs in the agent's image, beside the operator.
"""
