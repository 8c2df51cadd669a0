"""The paper's study again: its learner to the letter, for many runs at once, its figures and tables beside ours."""
