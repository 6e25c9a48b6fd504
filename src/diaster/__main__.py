"""`python -m diaster` is `diaster`."""

import sys

from diaster.cli import main

sys.exit(main())
