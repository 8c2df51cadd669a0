"""Pages and definitions generated from the code: CRDs, and job.md, reasons.md and cli.md in docs/reference."""
