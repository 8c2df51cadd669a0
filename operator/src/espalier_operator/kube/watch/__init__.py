"""What is known of the cluster: lists and watches fill one store of indexers, one indexer for each kind."""
