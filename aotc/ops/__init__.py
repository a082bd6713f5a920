"""The operators of the language: each described once, in one row of one file of this package."""
