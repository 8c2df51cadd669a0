"""The laboratory of Espalier: studies of the product, and optional parts that the product uses if it is installed."""
