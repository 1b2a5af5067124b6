"""How good predictions are: scores, and the protocol by which they are measured."""
