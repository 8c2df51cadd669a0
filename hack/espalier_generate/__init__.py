"""Pages and definitions that are generated from the code: CRDs, docs/job.md, docs/reasons.md, docs/cli.md."""
