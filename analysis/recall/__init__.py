"""Multi-query associative recall (MQAR): who can look up what it has read, and how wide it must be for that."""
