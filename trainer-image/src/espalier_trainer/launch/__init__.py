"""The trainer process: a job file and environment variables in, an exit code out."""
