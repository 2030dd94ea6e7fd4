"""Alembic's migrations: a portion of the namespace, so that an installed collector can migrate."""
