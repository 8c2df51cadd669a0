"""Jobs of a trace on simulated nodes, scheduled by any policy: a backend without a cluster and without training."""
