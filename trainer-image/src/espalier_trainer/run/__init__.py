"""The common part of all training loops of a job, the built-in one and a user's.

`run.Run` is one run in the leader: resume, step boundaries, workers that join and leave, the ends of epochs and of the
run. Its parts act on it: consultations and growth (`growing`), the next step and failed ones (`steps`), checkpoints
(`saving`).

`builtin_loop.trainer.Trainer` and `user_loop.leader.UserLeader` (a user's script) are loops on it. They differ in their
`elastic.states.TrainingState` and in how they compute a step. `elastic.states.StateCopy` is the copy that a worker
other than the leader holds. `training.hooks.Hooks` is the extension point for features that take part in a run, such as
distillation.
"""
