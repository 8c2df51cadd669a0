"""The documents that the parts exchange, and what they are made of: job, status, report, allocation, advice, events."""
