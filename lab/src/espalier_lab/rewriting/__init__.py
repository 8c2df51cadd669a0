"""Other computations of a model: the rules and their search (`engine`), in a job (`job`), and learned (`learned`)."""
