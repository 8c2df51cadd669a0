"""Types, files and clients that all parts of Espalier share: job, architecture, advice, allocation, report."""
