"""What the tools call: from a config file and a command line to results."""
