"""A fleet with a known truth: job logs drawn from a law of throughput that the logs themselves do not tell.

What lives here: model types, teams, jobs, their attempts, the law, and the writer of logs. What does not: any predictor.
Neither side may import the other, so that no model is fitted to the form of the law.
"""
