"""Runs of the ready trainer in virtual time, with a batch size that is fixed or follows goodput."""
