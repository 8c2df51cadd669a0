"""Files with jobs and queues: every problem with its position, and what is allowed."""
