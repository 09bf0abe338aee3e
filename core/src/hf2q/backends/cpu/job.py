"""What a linear job reads: words of a `Job` and of its `Segment`s, int64 each. Addresses, counts and sizes in bytes.

A job multiplies the rows of one float32 array by one or several matrices. A segment is one matrix (or one expert of a
stack) and the rows that go through it: `IN` and `OUT` list, for each, the row of x to read and the row of y to write.
It is cut into units of some groups of sixteen weights' rows times some rows of x, which the members of the team take.
"""

from __future__ import annotations

# of a job: arrays, then sizes behind the words of `teamwork.ARRAYS`
X, RESULTS = 0, 1  # rows of x, and where all results begin
COUNT, COLUMNS = 8, 9  # rows of x, their length
PREPARE, SLICES = 10, 11  # the kernel that makes of x what the leaves read, in so many slices; 0: none
CODES, SCALES = 12, 13  # activations as int8 (rows, columns) and float32 scales (rows, columns / 32)
LOWS_16, LOWS_32 = 14, 15  # minus scale times sum of codes, float32 (rows, columns / 16), (rows, columns / 32)
TILES = 16  # activations as bfloat16 tiles
SEGMENTS, SEGMENT_COUNT, UNITS = 17, 18, 19
JOB_WORDS = 20

# of a segment
LEAF, WEIGHTS, GROUP_BYTES, ROWS, TABLE = 0, 1, 2, 3, 6
Y, Y_STRIDE = 4, 5  # of its results: bytes after RESULTS, and from row to row
IN, OUT, PASSING = 7, 8, 9
GROUPS_EACH, ROWS_EACH, ACROSS, FIRST = 10, 11, 12, 13  # of a unit; units side by side; units before this segment
SEGMENT_WORDS = 16

MOST_ROWS = 128
"""Rows of x in a unit at most: what a leaf keeps sums of on its stack."""
STEP, STEP_WORDS = 256, 64
"""Inputs that a leaf unpacks at a time, and the words of four codes that they make."""
