"""Third-party training loops as workers of a job. Each module needs the extra of `espalier-trainer` of the same name.

`accelerate` joins the loop of a script that uses Hugging Face's Accelerate; `transformers` is its `Trainer`, and
`lightning` a callback, which take the job's batches as one stream (`user_loop.batch_stream`).
"""
