"""Runs LEAP: settings, definitions, jobs, schedules, the UIs and the `leap` command."""
