"""Trials on extra GPUs: actions are tried on copies of the model before one of them is carried out.

`rules` determines the arms, their duration and the winner, and defines the messages between leader and workers. `solo`
tries in a worker, and `growth_trial` keeps the trial in progress in the leader. The base trains on meanwhile, so a
trial costs the job none of its budget; a worker that is taken back ends only its own part of the trial.
"""
