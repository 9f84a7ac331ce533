"""Speed of the engines (issue 4): one core, a store in memory."""
