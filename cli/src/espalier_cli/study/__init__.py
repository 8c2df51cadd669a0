"""`espalier agent reproduce`: the paper's study, drawn and written beside the paper's own figures."""
