"""The dashboards as pictures: for people without Grafana, and for the docs.

`units` and `substitution` are what Grafana does to numbers and texts, pure. `prometheus` asks; `reading` runs all
queries of a dashboard. `canvas` and `sheet` draw the answers.
"""
