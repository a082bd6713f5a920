"""The content-addressed store: an OCI image layout on disk."""
