"""The subcommands of `leap`, a file each. Each imports what it needs when it is called, so that `--help` stays quick."""
