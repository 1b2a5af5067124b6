"""What the scheduler side uses: base dependencies alone, no database, no tracking server."""
