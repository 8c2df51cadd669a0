"""What `agent.py` measures of the agent's learners."""
