"""What every training loop of a job has in common, the ready one and a user's.

`run.Run` is one run in the leader: resume, step boundaries, workers that join and leave, consultations and growth
(`growing`), the ends of epochs and of the run. What these act on is `live.LiveRun`.

`ready.trainer.Trainer` (the ready trainer) and `own.leading.Leading` (a user's script) are loops on it. They differ in
their `elastic.loop_state.TrainingState` and in how they compute a step. `elastic.loop_state.StateCopy` is the copy that
a worker other than the leader holds. `training.hooks.Hooks` is the extension point for features that take part in a
run, such as distillation.
"""
