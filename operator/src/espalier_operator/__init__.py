"""The scheduler, which grants GPUs to jobs: on Kubernetes, over local processes, in virtual time."""
