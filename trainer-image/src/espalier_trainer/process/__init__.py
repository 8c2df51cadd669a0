"""The process of a trainer: its environment variables, its place among leaders, SIGTERM."""
