"""What growth leads to, measured: corpora of models, trainings in virtual time that are collected and judged."""
