"""The operator as a process: command line, credentials, election, health, start and end."""
