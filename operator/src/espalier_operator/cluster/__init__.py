"""What nodes offer and what is free of it: GPUs, other resources, places for gangs, quotas of namespaces. Pure."""
