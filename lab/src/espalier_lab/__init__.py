"""The laboratory of Espalier: studies of the product, and what the product uses of them where this is installed."""
