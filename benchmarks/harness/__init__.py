"""What several benchmarks share: runs in processes, statistics over seeds, tables, and a description of the machine."""
