"""``python -m hf2q`` is the ``hf2q`` program."""

import sys

from hf2q.cli import main

if __name__ == "__main__":
    sys.exit(main())
