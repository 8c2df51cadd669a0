"""What is estimated from measurements: throughput, goodput and gains. Pure."""
