"""The commands of the command line, one file each. They import what is heavy only when they run."""
