"""`python -m espalier_trainer`."""

from espalier_trainer.main import main

raise SystemExit(main())
