"""Measurements that environments are made of."""
