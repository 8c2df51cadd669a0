"""The built-in loop, which users know as the ready trainer: it trains the model and data set that a job names.

It is a loop on `run.Run`, as a user's own is (`user_loop`): `trainer.Trainer` in the worker that leads,
`worker.BuiltinWorker` in the others, both over one `state.BuiltinState` and one `steps.take`.
"""
