"""The known state of the cluster: lists and watches fill one store, with one indexer for each kind."""
