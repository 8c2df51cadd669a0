"""Advice on growth: the agent's client, consultations, forecasts, and the report of growth points."""
