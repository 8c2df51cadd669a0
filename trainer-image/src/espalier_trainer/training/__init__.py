"""What is trained: the network with its optimizer, its evaluation, and the progress of a run."""
