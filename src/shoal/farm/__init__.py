"""Farms."""
