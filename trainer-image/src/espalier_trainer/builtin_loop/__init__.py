"""The built-in loop, called the ready trainer in the user documentation: it trains a job's model and data set.

It is a loop on `run.Run`, like a user's own (`user_loop`): `trainer.Trainer` in the leader, `worker.BuiltinWorker` in
the others, both over one `state.BuiltinState` and one `steps.take`.
"""
