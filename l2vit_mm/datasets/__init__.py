"""The data sets. Each file that needs a toolbox imports it, so import the file that you need."""
