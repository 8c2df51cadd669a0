"""Monitoring as code: Grafana dashboards, Prometheus alert rules, the pages about metrics.

`make dashboards` writes all of it; the output is committed, so that a chart needs no Python.

Dashboards are also drawn as pictures, for the docs and for people without Grafana: `reading` runs all queries of a
dashboard on a Prometheus, `canvas` and `sheet` draw the answers.
"""
