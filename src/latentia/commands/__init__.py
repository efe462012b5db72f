"""The commands of the command line, one file each. They import large packages only when they run."""
