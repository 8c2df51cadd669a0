"""The ready trainer: the job names model, data set and optimizer, and this package trains them.

It is a loop on the core as a user's own (`espalier_trainer.own`) is: `trainer.Trainer` in the worker that leads,
`follower.Follower` in the others, both over one `state.JobState` and one `steps.take`.
"""
