"""Estimates from measurements: throughput, goodput and gains. Pure."""
