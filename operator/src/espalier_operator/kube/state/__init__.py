"""Jobs as the operator has them in mind, from what the API server's objects say."""
