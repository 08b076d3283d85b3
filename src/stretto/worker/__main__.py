"""`python -m stretto.worker`: see `main`."""

import sys

from stretto.worker.main import main

if __name__ == "__main__":
    sys.exit(main())
