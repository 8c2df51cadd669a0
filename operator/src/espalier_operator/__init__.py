"""The scheduler: which job gets which GPUs, for how long; on Kubernetes, over local processes, in virtual time."""
