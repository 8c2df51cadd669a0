"""Which extra workers are asked back, in which order, and what they hold. Pure."""
