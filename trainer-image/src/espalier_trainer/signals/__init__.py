"""Messages between trainer and scheduler while a job trains: allocations, reports, metrics, traces."""
