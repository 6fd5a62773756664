"""The functions behind the tools: from a config file and a command line to results."""
