"""`espalier agent collect`: outcome tables, trained with shared prefixes."""
