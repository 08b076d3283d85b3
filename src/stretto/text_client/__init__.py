"""The text of requests, made in the process that reads them: the worker sees token ids only."""
