"""Pages and definitions that are generated from the code: CRDs, job.md, reasons.md and cli.md in docs/reference."""
