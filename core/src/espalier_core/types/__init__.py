"""The documents that the parts exchange, and their components: job, status, report, allocation, advice, events."""
