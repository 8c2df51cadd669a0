"""Capacity of nodes and the free part of it: GPUs, other resources, racks for gangs, namespace quotas. Pure."""
