"""A client of a Runnel gateway for LangBot runs."""
