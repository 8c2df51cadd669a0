"""Monitoring as code: Grafana dashboards, Prometheus alert rules, the pages about metrics.

`make dashboards` writes all of it; what is written is committed, so that a chart needs no Python.
"""
