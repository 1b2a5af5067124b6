"""LEAP predicts each training job's throughput on every candidate hardware type and ranks them by throughput per cost."""
