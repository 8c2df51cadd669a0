"""GPUs that come and go: traces, a device that takes its time, and four ways to train there."""
