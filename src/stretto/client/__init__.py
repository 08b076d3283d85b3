"""The client of runtimes: streams, batching of calls, transport, supervision. Not what tokens mean."""
