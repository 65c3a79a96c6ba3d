"""Two settings measured in the same blocks, by their ratio: what stats/estimates.h does, for pairs that firkin tune does not compare.

The median of the means of every two blocks' log(a / b), each with itself as well (Hodges and Lehmann 1963), and the interval of Wilcoxon's
signed ranks (Tukey 1949).
"""

import math
import statistics

MOST_BLOCKS = 100


def means_outside(count, confidence):
    """How many of the sorted means lie outside the interval, at either end."""
    ways = [1.0]  # of the ranks 1 to count to sum to t
    for rank in range(1, count + 1):
        longer = ways + [0.0] * rank
        for total in range(len(ways)):
            longer[total + rank] += ways[total]
        ways = longer
    outside, below = 0, ways[0] / 2**count
    while below <= (1 - confidence) / 2:
        outside += 1
        below += ways[outside] / 2**count
    return outside


def paired_ratio(a, b, confidence=0.95):
    """(ratio, low, high); low and high are None where there are too few blocks. Raises ValueError for series that are no pair."""
    if len(a) != len(b) or not a or len(a) > MOST_BLOCKS:
        raise ValueError(f"a paired ratio of {len(a)} and {len(b)} blocks; expected the same number of each, 1 to {MOST_BLOCKS}")
    logs = [math.log(x / y) for x, y in zip(a, b)]
    means = sorted((logs[i] + logs[j]) / 2 for i in range(len(logs)) for j in range(i, len(logs)))
    outside = means_outside(len(logs), confidence)
    ratio = math.exp(statistics.median(means))
    if outside == 0:
        return ratio, None, None
    return ratio, math.exp(means[outside - 1]), math.exp(means[-outside])
