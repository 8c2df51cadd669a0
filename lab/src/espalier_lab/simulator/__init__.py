"""Jobs of a trace on simulated nodes, scheduled by any policy: the backend without a cluster and without training."""
