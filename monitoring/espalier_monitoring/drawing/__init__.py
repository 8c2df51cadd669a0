"""The dashboards as pictures: for people without Grafana, and for the docs.

`reading` runs all queries of a dashboard on a Prometheus. `canvas` and `sheet` draw the answers.
"""
