"""Serves unmodified LangBot runner plugins as a Runnel runner endpoint."""
