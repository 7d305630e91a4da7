"""The toolkit. It knows no operator by name."""
