"""What trainer and scheduler tell each other while a job trains: allocations, reports, metrics, traces."""
