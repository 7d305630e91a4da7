"""Measuring operators: verified before timed, compared with their spread, kept one file a machine."""
