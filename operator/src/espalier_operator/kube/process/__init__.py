"""The operator as a process: command line, election, health, start and end."""
