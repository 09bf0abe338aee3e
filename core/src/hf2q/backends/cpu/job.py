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
RECORDS, TILES = 12, 13  # activations as int8: a record for each row and 32 columns; or as bfloat16 tiles
SEGMENTS, SEGMENT_COUNT, UNITS = 14, 15, 16
JOB_WORDS = 17

# a record: a cache line with 32 codes, and with what is needed of them as a whole, at these bytes
RECORD = 64
SCALE = 32  # float32
LOW_32, LOWS_16 = 36, 40  # minus the scale times the sum of all codes, and of either half: float32
SUMS_16, SUM_32 = 48, 56  # -32 times the sum of either half, and -128 times that of all: int32

# of a segment
LEAF, WEIGHTS, GROUP_BYTES, ROWS, TABLE = 0, 1, 2, 3, 6
Y, Y_STRIDE = 4, 5  # of its results: bytes after RESULTS, and from row to row
IN, OUT, PASSING = 7, 8, 9
GROUPS_EACH, ROWS_EACH, ACROSS, FIRST = 10, 11, 12, 13  # of a unit; units side by side; units before this segment
IN_FILE, FILE_LEAF = 14, 15  # of weights that are not repacked yet: see `in_file`
SEGMENT_WORDS = 16

MOST_ROWS = 128
"""Rows of x in a unit at most: what a leaf keeps sums of on its stack."""
STEP, STEP_WORDS = 256, 64
"""Inputs that a leaf unpacks at a time, and the words of four codes that they make."""
