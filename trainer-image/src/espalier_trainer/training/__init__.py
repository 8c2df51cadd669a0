"""The trained network with its optimizer, its evaluation, and the progress of a run."""
