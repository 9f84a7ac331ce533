"""The application file that spark-submit wants: the writer itself is in the packed environment."""

import sys

from headrace_spark.jobs.writer import main

if __name__ == "__main__":
    sys.exit(main())
