"""The catalogue of metrics, how they are exported, and the names of traces."""
