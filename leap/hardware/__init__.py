"""Hardware: from a raw spelling to a hardware type, and what is known of each type."""
