"""The module that stands as `pypto.language` while a model's modules are loaded.

Importing this package loads nothing; `install.language_installed` puts the names in place.
"""
