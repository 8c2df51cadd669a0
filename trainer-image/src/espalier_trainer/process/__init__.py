"""What the scheduler tells a trainer process when it starts and ends: settings, its place among leaders, SIGTERM."""
