"""The old name of `espalier_lab.scheduling`, for ids such as `espalier_scheduling.placement:espalier/Placement-v0`.

It goes with release 0.3.
"""
