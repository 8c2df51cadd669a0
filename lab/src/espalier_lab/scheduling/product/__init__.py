"""Policy files in the product: the reader for the operator's policy `learned`, and the policy server.

Without torch, kopf and the client of API servers: the server runs in the agent's image, beside the operator.
"""
