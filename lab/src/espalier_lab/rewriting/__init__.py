"""Computing a model otherwise: the rules and their search (`engine`), in a job (`job`), and learned (`learned`)."""
