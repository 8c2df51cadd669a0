"""What the benchmarks of rewrites have in common."""
