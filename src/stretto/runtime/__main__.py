"""`python -m stretto.runtime`: see `main`."""

import sys

from stretto.runtime.main import main

if __name__ == "__main__":
    sys.exit(main())
