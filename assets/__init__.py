"""The asset graph: one thin function per table or model.

What lives here: declarations. What does not: anything that computes (`leap`) or runs (`pipelines`).
"""
