"""What every training loop of a job does alike, whoever wrote it.

`run.Run` is one run in the worker that leads: resume, step boundaries, the workers that come and go, consultations and
growth, the ends of epochs and of the run. `ready.trainer.Trainer` (the ready trainer) and `own.leading.Leading` (a
user's script) are loops on it. They differ in their `state.TrainingState` and in how they compute a step.
`state.StateCopy` is what a worker that does not lead holds. `hooks.Hooks` is the seam for what takes part in a run
without being its loop.
"""
